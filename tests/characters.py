"""What UTF-8 says about bytes that are cut anywhere, found without the product's code and without a decoder's state."""

from __future__ import annotations

#: Every beginning of a character that is not all of it. Characters that differ in their last byte alone share theirs.
BEGINNINGS = frozenset(
    chr(code).encode()[:size]
    for code in range(0x80, 0x110000, 0x40)
    if not 0xD800 <= code < 0xE000
    for size in range(1, len(chr(code).encode()))
)


def cut(data: bytes) -> tuple[str, bytes]:
    """The text of ``data``, and the bytes at its end that may become a character and are no text yet."""
    for size in (3, 2, 1):
        if data[-size:] in BEGINNINGS and len(data) >= size:
            return data[:-size].decode("utf-8", "replace"), data[-size:]
    return data.decode("utf-8", "replace"), b""
