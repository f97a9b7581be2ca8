"""Cutting text at the special tokens written in it, by llama.cpp's rule.

Longer tokens are looked for first, each from left to right in what the ones before it left. That differs from
"leftmost, then longest" only where special tokens overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: What llama.cpp strips after a token marked so: ASCII white space.
_WHITE = " \t\n\v\f\r"


class Partition:
    """Finds a fixed set of special tokens in texts."""

    def __init__(self, tokens: Mapping[str, int], stripping: frozenset[int] = frozenset()) -> None:
        """``tokens`` maps texts to ids; white space after a token in ``stripping`` is dropped."""
        # sorted() keeps the file's order among tokens of one length.
        self._tokens = sorted(tokens.items(), key=lambda item: -len(item[0].encode("utf-8", "surrogatepass")))
        self._stripping = stripping
        self._any = re.compile("|".join(re.escape(text) for text, _ in self._tokens)) if tokens else None

    def cut(self, text: str) -> Iterable[str | int]:
        """The text's pieces in order: strings (never empty) and ids of special tokens."""
        if not text:
            return []
        if self._any is None or self._any.search(text) is None:
            return [text]
        pieces: list[str | int] = [text]
        for special, index in self._tokens:
            if not any(isinstance(piece, str) and special in piece for piece in pieces):
                continue
            pieces = [part for piece in pieces for part in self._cut_one(piece, special, index)]
        return pieces

    def _cut_one(self, piece: str | int, special: str, index: int) -> list[str | int]:
        if not isinstance(piece, str) or special not in piece:
            return [piece]
        head, *rest = piece.split(special)
        parts: list[str | int] = [head] if head else []
        for part in rest:
            parts.append(index)
            kept = part.lstrip(_WHITE) if index in self._stripping else part
            if kept:
                parts.append(kept)
        return parts
