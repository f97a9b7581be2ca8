"""Keeps message contents from turning into control tokens.

A rendered conversation is one string, in which a user's "<|im_end|>" looks like the template's. So before rendering, a
character that occurs nowhere else is put into every text of a control token inside the messages, where it breaks it;
after the rendered string was cut at control tokens, the character is taken out again. The template sees texts that
differ from the originals only where they hold such texts, so trimming, splitting and upper-casing do no harm, and a
conversation without them is rendered and encoded exactly as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenloom.worker.text.errors import TextError

# Private use characters: no one else's meaning, and no tokenizer's special text.
_CANDIDATES = [*map(chr, range(0x10FFFD, 0x10FF00, -1)), *map(chr, range(0xF8FF, 0xF800, -1))]


class Guard:
    """Marks the texts of control tokens inside messages."""

    def __init__(self, texts: Iterable[str]) -> None:
        """``texts``: what the control tokens look like."""
        longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
        self._whole = None
        self._heads = self._tails = frozenset[str]()
        if longest_first:
            pattern = "|".join(re.escape(text[1:]) for text in longest_first)
            firsts = "".join({re.escape(text[0]) for text in longest_first})
            # Looks ahead only, so that overlapping ones are found too. Case is ignored since templates may change it.
            self._whole = re.compile(f"[{firsts}](?={pattern})", re.IGNORECASE)
            # A content that ends like the beginning of a control token could be completed by what the template writes
            # next.
            self._heads = frozenset(text[:n].lower() for text in longest_first for n in range(1, len(text)))
            self._tails = frozenset(text[n:].lower() for text in longest_first for n in range(1, len(text)))
            self._longest = len(longest_first[0]) - 1

    def mark(self, value: Any, mark: str) -> Any:
        """``value`` with ``mark`` inside every text of a control token in its strings, at any depth; else the same
        object.
        """
        if isinstance(value, str):
            return self._mark_text(value, mark)
        if isinstance(value, Mapping):
            return {self._mark_whole(key, mark): self.mark(item, mark) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item, mark) for item in value]
        return value

    def _mark_whole(self, text: Any, mark: str) -> Any:
        if self._whole is None or not isinstance(text, str):
            return text
        return self._whole.sub(lambda found: found[0] + mark, text)

    def _mark_text(self, text: str, mark: str) -> str:
        marked: str = self._mark_whole(text, mark)
        inner = marked.strip()
        if not inner or self._whole is None:
            return marked
        # White space at the ends stays outside of the marks: templates trim it.
        start = marked.index(inner)
        before, after = marked[:start], marked[start + len(inner) :]
        low = inner.lower()
        if any(low[-n:] in self._heads for n in range(1, min(self._longest, len(low)) + 1)):
            inner += mark
        if any(low[:n] in self._tails for n in range(1, min(self._longest, len(low)) + 1)):
            inner = mark + inner
        return before + inner + after


def unused_character(*values: Any) -> str:
    """A private use character that occurs in none of the values, at any depth. Raises TextError if all occur."""
    seen: set[str] = set()
    for value in values:
        _collect(value, seen)
    for candidate in _CANDIDATES:
        if candidate not in seen:
            return candidate
    raise TextError("messages: they hold every private use character there is")


def _collect(value: Any, seen: set[str]) -> None:
    if isinstance(value, str):
        if not value.isascii():
            seen.update(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(key, seen)
            _collect(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, seen)
