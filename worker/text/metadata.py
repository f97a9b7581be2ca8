"""Typed access to a GGUF file's metadata; every error names the key.

A mapping as any GGUF reader gives it: scalars, strings, and arrays as lists or numpy arrays (which this module never
imports: it takes whatever can be iterated).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenloom.worker.text.errors import TextError

PREFIX = "tokenizer.ggml."


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(key: str, expected: str, value: object) -> TextError:
    return TextError(f"model file: {key} must be {expected}, got {type(value).__name__} {_shown(value)}")


def string(meta: Mapping[str, Any], key: str) -> str | None:
    """The string under ``key``, or None if the file has no such key. Raises TextError if it is not a string."""
    value = meta.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(key, "a string", value)


def flag(meta: Mapping[str, Any], key: str, default: bool) -> bool:
    """The boolean under ``key``. Raises TextError if it is not one (0 and 1 count)."""
    value = meta.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or (hasattr(value, "__index__") and int(value) in (0, 1)):
        return bool(value)
    raise _wrong(key, "true or false", value)


def token_id(meta: Mapping[str, Any], key: str, vocab_size: int) -> int | None:
    """The token id under ``key``; None if absent or, as llama.cpp has it, outside the vocabulary (some converters
    write 0xFFFFFFFF for "none"). Raises TextError if it is not an integer.
    """
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(key, "a token id", value)
    number = int(value)
    return number if 0 <= number < vocab_size else None


def _array(meta: Mapping[str, Any], key: str, expected: str) -> list[Any] | None:
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong(key, expected, value)
    # numpy arrays give plain Python numbers through tolist(), many times quicker than one by one.
    return list(value.tolist()) if hasattr(value, "tolist") else list(value)


def strings(meta: Mapping[str, Any], key: str) -> list[str] | None:
    """The array of strings under ``key``, or None. Raises TextError naming the first entry that is not one."""
    values = _array(meta, key, "an array of strings")
    if values is None:
        return None
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise _wrong(f"{key}[{index}]", "a string of valid UTF-8", value)
    return values


def integers(meta: Mapping[str, Any], key: str, length: int) -> list[int] | None:
    """The array of at least ``length`` integers under ``key``, cut to it, or None. Raises TextError otherwise."""
    values = _array(meta, key, "an array of integers")
    if values is None:
        return None
    _long_enough(key, values, length)
    for index, value in enumerate(values):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _wrong(f"{key}[{index}]", "an integer", value)
    return [int(value) for value in values[:length]]


def floats(meta: Mapping[str, Any], key: str, length: int) -> list[float] | None:
    """The array of at least ``length`` numbers under ``key``, cut to it, or None. Raises TextError otherwise."""
    values = _array(meta, key, "an array of numbers")
    if values is None:
        return None
    _long_enough(key, values, length)
    try:
        numbers = [float(value) for value in values[:length]]
    except (TypeError, ValueError):
        raise _wrong(key, "an array of numbers", values) from None
    for index, number in enumerate(numbers):
        if number != number:
            raise _wrong(f"{key}[{index}]", "a number that can be compared", number)
    return numbers


def _long_enough(key: str, values: list[Any], length: int) -> None:
    if len(values) < length:
        raise TextError(f"model file: {key} has {len(values)} entries, the vocabulary has {length} tokens")
