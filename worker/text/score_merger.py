"""Joining characters by token score, step by step: the exact rule, for vocabularies whose scores tie."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping

_REMEMBERED = 20_000


class ScoreMerger:
    """Text to ids by scores: highest first, the leftmost of equals. Keeps the last words it met.

    ``tokens`` maps the texts that may be joined to ids, ``scores`` is by id, ``fallback`` holds an id for each byte.
    """

    def __init__(self, tokens: Mapping[str, int], scores: list[float], fallback: list[int]) -> None:
        self._tokens = tokens
        self._scores = scores
        self._fallback = fallback
        # Where no token has these two characters side by side, nothing is ever joined: text can be cut there.
        self._bonds = {text[i : i + 2] for text in tokens for i in range(len(text) - 1)}
        self._words: OrderedDict[str, list[int]] = OrderedDict()

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, whose spaces are already spelled as the vocabulary spells them."""
        ids: list[int] = []
        start = 0
        bonds = self._bonds
        for end in range(1, len(text) + 1):
            if end == len(text) or text[end - 1 : end + 1] not in bonds:
                ids += self._word(text[start:end])
                start = end
        return ids

    def _word(self, word: str) -> list[int]:
        known = self._words.get(word)
        if known is None:
            known = self._join(word)
            self._words[word] = known
            if len(self._words) > _REMEMBERED:
                self._words.popitem(last=False)
        return known

    def _join(self, word: str) -> list[int]:
        size = len(word)
        ends = list(range(1, size + 1))  # ends[i]: where the symbol that begins at i ends; 0 once it is part of another
        before = list(range(-1, size - 1))  # before[i]: where the symbol before it begins
        queue: list[tuple[float, int, int, int]] = []

        def consider(left: int) -> None:
            right = ends[left]
            if right < size:
                index = self._tokens.get(word[left : ends[right]])
                if index is not None:
                    heapq.heappush(queue, (-self._scores[index], left, right, ends[right]))

        for start in range(size - 1):
            consider(start)
        while queue:
            _, left, right, end = heapq.heappop(queue)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two has been joined with another since
            ends[left], ends[right] = end, 0
            if end < size:
                before[end] = left
            if before[left] >= 0:
                consider(before[left])
            consider(left)
        return self._spelled(word, ends)

    def _spelled(self, word: str, ends: list[int]) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            symbol = word[start : ends[start]]
            index = self._tokens.get(symbol)
            if index is None:
                ids += [self._fallback[byte] for byte in symbol.encode("utf-8")]
            else:
                ids.append(index)
            start = ends[start]
        return ids
