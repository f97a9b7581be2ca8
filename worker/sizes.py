"""Byte sizes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of "1073741824", "512M", "1.5G" or "2GiB" (powers of 1024). Raises ValueError."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number of bytes, or one such as 512M or 2GiB")
    return int(Fraction(match[1]) * _UNITS[match[2].lower()])


def show_bytes(size: float) -> str:
    """A size for people: "512.0 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
