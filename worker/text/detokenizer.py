"""Tokens to text while they come."""

from __future__ import annotations

import codecs

from tokenloom.worker.text.tokenizer import Tokenizer


class Detokenizer:
    """Gives out the text of tokens as soon as it is whole characters.

    What ``push`` and ``flush`` return, put together, is exactly ``tokenizer.decode`` of all the tokens, whatever the
    tokens are: bytes that can no longer become a character come out as U+FFFD at once, bytes that still can are held
    back. A step's text is a continuation of the log, so a SentencePiece word keeps the space it begins with. The
    state is a function of the tokens pushed: pushing the same ones into a new object restores it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that ``token`` completes; often "". Raises TextError for an id outside the vocabulary."""
        tokenizer = self._tokenizer
        return self._decoder.decode(
            tokenizer.spoken_bytes(token) if self._skip_special else tokenizer.token_bytes(token)
        )

    def flush(self) -> str:
        """What was held back, as U+FFFD. After it the object is as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
