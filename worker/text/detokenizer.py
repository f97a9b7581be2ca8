"""Tokens to text while they come."""

from __future__ import annotations

import re

from tokenloom.worker.text.tokenizer import Tokenizer

#: What stands in a text for bytes that are no character.
REPLACEMENT = "\ufffd"

#: Bytes of a character that are not all of it, at most.
MOST_HELD = 3

# By the first byte, which bytes may follow it in UTF-8, but for the last. (Python's own incremental decoder also waits
# for the third byte of a surrogate, which is no character with it either.)
_UNFINISHED = re.compile(
    rb"(?:[\xc2-\xdf]"
    rb"|\xe0[\xa0-\xbf]?|[\xe1-\xec\xee\xef][\x80-\xbf]?|\xed[\x80-\x9f]?"
    rb"|\xf0(?:[\x90-\xbf][\x80-\xbf]?)?|[\xf1-\xf3](?:[\x80-\xbf][\x80-\xbf]?)?|\xf4(?:[\x80-\x8f][\x80-\xbf]?)?)\Z"
)


class Detokenizer:
    """Gives out the text of tokens as soon as it is whole characters.

    What ``push`` returns, put together, is ``tokenizer.decode`` of all the tokens, whatever they are, but for the bytes
    ``held`` in the end: those that can no longer become a character come out as U+FFFD at once, those that still can
    are held. A step's text is a continuation of the log, so a SentencePiece word keeps the space it begins with.

    ``held`` is all of the state: a new object that is given it goes on where this one is.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, held: bytes = b"") -> None:
        """``held``: the bytes that have come of the character in whose middle the tokens begin."""
        self.held = held
        self._tokenizer = tokenizer
        self._skip_special = skip_special

    def push(self, token: int) -> str:
        """The text that ``token`` completes; often "". Raises TextError for an id outside the vocabulary."""
        text, self.held = _characters(self.held + self._bytes_of(token))
        return text

    def skip(self, token: int) -> str:
        """Pass over a token that is no text: U+FFFD if it breaks off a character, else "".

        A character that it finishes is no text either. Raises TextError for an id outside the vocabulary.
        """
        held, data = self.held, self._bytes_of(token)
        text, self.held = _characters(held + data)
        return REPLACEMENT if held and text == REPLACEMENT + _characters(data)[0] else ""

    def _bytes_of(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        return tokenizer.spoken_bytes(token) if self._skip_special else tokenizer.token_bytes(token)


def unfinished(data: bytes) -> bytes:
    """The bytes at the end of ``data`` that begin a character and are not all of it.

    The last three decide: a byte that begins a character does so whatever stands before it.
    """
    found = _UNFINISHED.search(data[-MOST_HELD:])
    return found[0] if found else b""


def _characters(data: bytes) -> tuple[str, bytes]:
    """The text of ``data``, and what is left of it."""
    held = unfinished(data)
    return data[: len(data) - len(held)].decode("utf-8", "replace"), held
