"""The one error of this package."""

from __future__ import annotations


class TextError(ValueError):
    """Text, messages, tokens or a file's tokenizer metadata that cannot be used.

    The message names what was wrong (a metadata key, a field, an offset), the value, and what would be accepted.
    """
