"""The bytes of a session's log: 4 a token, little-endian, low 24 bits the id, bit 24 set when it was generated."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4
ID_MASK = (1 << 24) - 1
GENERATED = 1 << 24


def pack(tokens: Iterable[int], *, generated: bool) -> bytes:
    """Log bytes of the given token ids, all of one role."""
    flag = GENERATED if generated else 0
    return words_to_bytes(array("I", [token | flag for token in tokens]))


def unpack(data: bytes) -> list[int]:
    """Token ids of log bytes. Raises ValueError unless their number is a multiple of 4."""
    return [word & ID_MASK for word in words(data)]


def words(data: bytes) -> array[int]:
    """The log's 32-bit words, flags included. Raises ValueError unless the number of bytes is a multiple of 4."""
    if len(data) % TOKEN_BYTES:
        raise ValueError(f"a log is a multiple of {TOKEN_BYTES} bytes, not {len(data)}")
    result = array("I")
    result.frombytes(data)
    if sys.byteorder == "big":
        result.byteswap()
    return result


def words_to_bytes(words: array[int]) -> bytes:
    """Log bytes of 32-bit words, flags included."""
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()
