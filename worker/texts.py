"""Text of the model being served: what a step's text and messages are as tokens, and generated tokens as text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.log import GENERATED, ID_MASK

from .text import MOST_HELD, ChatTemplate, Detokenizer, StopStrings, TextError, Tokenizer, unfinished

log = logging.getLogger("rq.worker")

Made = TypeVar("Made")


class Texts:
    """The model file's vocabulary and chat template, or why there is none: tokens can be served without either."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._tokenizer, self._no_tokenizer = _made(lambda: Tokenizer.from_metadata(metadata))
        self._template, self._no_template = _made(lambda: ChatTemplate.from_metadata(metadata, self._tokenizer))
        #: Characters of the longest token: what a text of so many characters cannot be shorter than in tokens.
        self.longest = max(map(len, metadata["tokenizer.ggml.tokens"])) if self._tokenizer is not None else 1
        if self._tokenizer is None:
            log.warning("tokenloom: serving tokens only, no text: %s", self._no_tokenizer)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The model's own end-of-generation tokens."""
        return frozenset() if self._tokenizer is None else self._tokenizer.stop_tokens

    def encode(self, text: str, last: Sequence[int]) -> list[int]:
        """Tokens of raw text behind the log's ``last`` tokens; special tokens are understood.

        An empty log begins with the model's BOS, if it wants one.
        """
        tokenizer = self._need_tokenizer()
        continues = bool(last) and not tokenizer.is_special(last[-1])
        return self._checked(
            "text", lambda: tokenizer.encode(text, parse_special=True, add_bos=not last, continues=continues)
        )

    def encode_chat(self, messages: Sequence[dict[str, Any]], log: Sequence[int]) -> list[int]:
        """Tokens of chat turns, as the start of a conversation or as the continuation of the one in ``log``."""
        self._need_tokenizer()
        if self._template is None:
            raise TokenloomError.of("unsupported", f"messages: {self._no_template}", field="messages")
        template = self._template
        return self._checked("messages", lambda: template.encode(messages, log))

    def held(self, log: array[int], length: int) -> bytes:
        """The beginning of a character in whose middle the first ``length`` words of ``log`` end.

        Only generated tokens count: what is appended is another text, which neither begins nor finishes their
        characters. b"" between two characters.
        """
        tail = b""
        while self._tokenizer is not None and length and len(tail) < MOST_HELD and log[length - 1] & GENERATED:
            length -= 1
            tail = self._tokenizer.spoken_bytes(log[length] & ID_MASK) + tail
        return unfinished(tail)

    def stream(self, stops: Sequence[str], held: bytes = b"") -> Stream | NoText:
        """What turns one step's generated tokens into text, behind the beginning of a character."""
        return NoText() if self._tokenizer is None else Stream(self._tokenizer, stops, held)

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise TokenloomError.of("unsupported", f"text: {self._no_tokenizer}; send tokens", field="text")
        return self._tokenizer

    @staticmethod
    def _checked(field: str, encode: Callable[[], list[int]]) -> list[int]:
        try:
            return encode()
        except ValueError as error:
            raise TokenloomError.of("invalid", f"{field}: {error}", field=field) from error


class Stream:
    """A detokenizer with stop strings behind it."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], held: bytes = b"") -> None:
        self._detokenizer = Detokenizer(tokenizer, held=held)
        self._stops = StopStrings(stops) if stops else None
        self.may_stop = bool(stops)

    def push(self, token: int) -> tuple[str, bool]:
        """Text that became certain, and whether a stop string was met."""
        return self._until_stop(self._detokenizer.push(token))

    def skip(self, token: int) -> str:
        """Text that became certain by a token that is no part of it."""
        return self._until_stop(self._detokenizer.skip(token))[0]

    def flush(self) -> str:
        """What was held back as the start of a stop string, and was none after all."""
        return "" if self._stops is None else self._stops.flush()

    @property
    def pending(self) -> int:
        """How many bytes of a character have come whose rest has not."""
        return len(self._detokenizer.held)

    def _until_stop(self, text: str) -> tuple[str, bool]:
        if self._stops is None:
            return text, False
        result = self._stops.push(text)
        return result.text, result.stopped


class NoText:
    """A vocabulary that cannot be read has no text."""

    may_stop = False
    pending = 0

    def push(self, token: int) -> tuple[str, bool]:
        return "", False

    def skip(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def _made(make: Callable[[], Made]) -> tuple[Made | None, str]:
    try:
        return make(), ""
    except TextError as error:
        return None, str(error)
