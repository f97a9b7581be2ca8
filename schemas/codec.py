"""msgpack with limits: the only encoding that anything of tokenloom reads from Redis.

What is accepted: nil, booleans, integers of 64 bits, floats, UTF-8 text, byte strings, arrays, and maps whose keys are
text or integers. Extension types, timestamps among them, are refused, so that decoding never yields anything but plain
data.

Decoding first walks the bytes without building anything. It stops at the first container that promises more items than
there are bytes left for all open containers together, so hostile data cannot make the second pass allocate more than a
small multiple of its own size, and it goes down with an explicit stack, so nesting cannot overflow Python's. Limits on
items and containers bound the time: a few kilobytes, inflated, would otherwise keep a process busy for a minute.
"""

from __future__ import annotations

import re
from typing import Any

import msgpack
from pydantic import BaseModel

#: Largest encoded object by default, in bytes: a job's arguments, an event, a record or a result.
MAX_BYTES = 16 << 20

#: Deepest nesting of arrays and maps by default; what this package sends stays under 8.
MAX_DEPTH = 16

#: Entries of one map. Above any map of the contract; it bounds the cost of colliding keys and of unknown fields.
MAX_MAP = 1 << 13

#: Values in all, containers and map keys included, by default: a result with many log-probabilities has most.
MAX_ITEMS = 1 << 22


class CodecError(ValueError):
    """Bytes that are not acceptable msgpack, or an object that cannot be written as such. Says what and the limit."""


def encode(obj: Any, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> bytes:
    """The msgpack bytes of plain data or of a pydantic model, which becomes a map without its None fields.

    What this returns, ``decode`` accepts. Raises CodecError for a type outside the contract, for text that is not valid
    Unicode, and past the limits.
    """
    data = encode_checked(obj, max_bytes=max_bytes)
    if not isinstance(obj, BaseModel):
        decode(data, max_bytes=max_bytes, max_depth=max_depth)
    return data


def encode_checked(obj: Any, *, max_bytes: int = MAX_BYTES) -> bytes:
    """As ``encode``, of what is known to keep to the limits on nesting, keys and items: it is not read back."""
    try:
        data: bytes = msgpack.packb(obj, default=_plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"cannot be written as msgpack: {error}") from error
    if len(data) > max_bytes:
        raise CodecError(f"encoded size is {len(data)} bytes; the limit is {max_bytes}")
    return data


def decode(
    data: bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_items: int = MAX_ITEMS,
    max_containers: int = MAX_ITEMS,
) -> Any:
    """The one object that ``data`` holds: arrays as lists, maps as dicts.

    Raises CodecError, and nothing else, for bytes that are too many, malformed, cut short, followed by others, nested
    deeper than ``max_depth``, with more than ``max_items`` values or ``max_containers`` arrays and maps in all, with an
    extension type, invalid UTF-8, or a map key that is neither text nor integer or comes twice.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise CodecError(f"msgpack is bytes, not {type(data).__name__}")
    if len(data) > max_bytes:
        raise CodecError(f"encoded size is {len(data)} bytes; the limit is {max_bytes}")
    data = bytes(data)
    _check(data, max_depth, max_items, max_containers)
    try:
        # Keys are _map's to judge, before anything is hashed.
        return msgpack.unpackb(data, raw=False, strict_map_key=False, object_pairs_hook=_map, ext_hook=_no_extension)
    except CodecError:
        raise
    except UnicodeDecodeError as error:
        raise CodecError(f"text is not valid UTF-8: {error.reason} at byte {error.start} of it") from error
    except Exception as error:  # whatever msgpack raises: the caller is promised one type
        raise CodecError(f"not valid msgpack: {type(error).__name__} {error}") from error


def _plain(obj: Any) -> Any:
    if isinstance(obj, BaseModel):
        return obj.model_dump(exclude_none=True)
    raise TypeError(f"{type(obj).__name__} is not plain data")


def _map(pairs: list[tuple[Any, Any]]) -> dict[str | int, Any]:
    result: dict[str | int, Any] = {}
    for key, value in pairs:
        if type(key) is not str and type(key) is not int:
            raise CodecError(f"a map key is text or an integer, not {type(key).__name__}")
        if key in result:
            raise CodecError(f"map key {str(key)[:64]!r} comes twice")
        result[key] = value
    return result


def _no_extension(code: int, _: bytes) -> Any:
    raise CodecError(f"extension type {code} is not accepted")


# By first byte: how many bytes the whole object takes, or one of these when it has to be looked at.
_STR, _BIN, _ARRAY, _MAP, _REFUSED = -1, -2, -3, -4, -5


def _widths() -> tuple[int, ...]:
    widths = [1] * 256
    for first in range(0x80, 0x90):
        widths[first] = _MAP
    for first in range(0x90, 0xA0):
        widths[first] = _ARRAY
    for first in range(0xA0, 0xC0):
        widths[first] = 1 + (first & 0x1F)
    widths[0xC1] = _REFUSED
    for first, kind in ((0xC4, _BIN), (0xC5, _BIN), (0xC6, _BIN), (0xD9, _STR), (0xDA, _STR), (0xDB, _STR)):
        widths[first] = kind
    for first in (*range(0xC7, 0xCA), *range(0xD4, 0xD9)):
        widths[first] = _REFUSED
    for first, width in ((0xCA, 5), (0xCB, 9), (0xCC, 2), (0xCD, 3), (0xCE, 5), (0xCF, 9)):
        widths[first] = width
    for first, width in ((0xD0, 2), (0xD1, 3), (0xD2, 5), (0xD3, 9)):
        widths[first] = width
    widths[0xDC] = widths[0xDD] = _ARRAY
    widths[0xDE] = widths[0xDF] = _MAP
    return tuple(widths)


_WIDTHS = _widths()

# By first byte: how many bytes of length follow it; 0 where the length is in the first byte's low four bits.
_LENGTH_BYTES = dict(
    zip((0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF), (1, 2, 4, 1, 2, 4, 2, 4, 2, 4), strict=True)
)


# So many numbers in a row, which is how tokens come, are stepped over at once.
_RUN = 64
_NUMBERS = re.compile(
    rb"(?:[\x00-\x7f\xe0-\xff]|\xcd.{2}|\xcc.|\xce.{4}|\xcb.{8}|\xca.{4}|\xcf.{8}){%d}" % _RUN, re.DOTALL
)


def _check(data: bytes, max_depth: int, max_items: int, max_containers: int) -> None:
    """Raises CodecError unless ``data`` is one whole, closed object within the limits."""
    end = len(data)
    items, containers = 1, 0
    at = 0
    left = 1  # objects still to come in the innermost open container
    outer: list[int] = []  # the same for those around it
    owed = 0  # the sum of ``outer``
    widths = _WIDTHS
    while True:
        while left == 0:
            if not outer:
                if at != end:
                    raise CodecError(f"{end - at} bytes follow the object, which ends at byte {at}")
                return
            left = outer.pop()
            owed -= left
        while left >= _RUN and (run := _NUMBERS.match(data, at)):
            at = run.end()
            left -= _RUN
        if left == 0:
            continue
        if at >= end:
            raise CodecError(f"cut short at byte {end}")
        left -= 1
        first = data[at]
        width = widths[first]
        if width > 0:
            at += width
            if at > end:
                raise CodecError(f"cut short at byte {end}")
            continue
        if width == _REFUSED:
            what = "an unused byte code" if first == 0xC1 else "an extension type"
            raise CodecError(f"byte {at} begins {what}, which is not accepted")
        digits = _LENGTH_BYTES.get(first, 0)
        size = int.from_bytes(data[at + 1 : at + 1 + digits], "big") if digits else first & 0x0F
        begins = at
        at += 1 + digits
        if width in (_STR, _BIN):
            at += size
            if at > end:
                raise CodecError(f"byte {begins} promises {size} bytes, {max(0, end - begins - 1 - digits)} are there")
            continue
        if width == _MAP:
            if size > MAX_MAP:
                raise CodecError(f"the map at byte {begins} has {size} entries; the limit is {MAX_MAP}")
            size *= 2
        # Every object takes a byte at least.
        if size + left + owed > end - at:
            raise CodecError(f"byte {begins} promises {size} objects; only {max(0, end - at)} bytes follow")
        items += size
        if items > max_items:
            raise CodecError(f"{items} values by byte {begins}; the limit is {max_items}")
        containers += 1
        if containers > max_containers:
            raise CodecError(f"more than {max_containers} arrays and maps at byte {begins}")
        if len(outer) >= max_depth:
            raise CodecError(f"nested deeper than {max_depth} levels at byte {begins}")
        outer.append(left)
        owed += left
        left = size
