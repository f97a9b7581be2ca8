"""GPT-2's printable spelling of bytes: every byte is one character, so that merges can be written as text.

Bytes that print in Latin-1 (other than the space) stand for themselves; the remaining 68 take U+0100, U+0101, ... in
order.
"""

from __future__ import annotations


def _table() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(0x100 + n) for n, byte in enumerate(others)})
    return table


BYTE_TO_CHAR = _table()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def spelled_bytes(token: str) -> bytes:
    """The bytes that a byte-level token stands for. Characters outside the table, which only a damaged vocabulary has,
    come out as their own UTF-8.
    """
    out = bytearray()
    for char in token:
        byte = CHAR_TO_BYTE.get(char)
        if byte is None:
            out += char.encode("utf-8", "surrogatepass")
        else:
            out.append(byte)
    return bytes(out)
