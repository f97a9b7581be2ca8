"""Vocabularies of several kinds, to say the same texts in: real ones, made ones, and one that heeds no character."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from text.texts import EMOJI, SCRIPTS
from tokenloom.native_ext.gguf import read_metadata
from tokenloom.worker.text import Tokenizer
from tokenloom.worker.text.bytelevel import BYTE_TO_CHAR
from tokenloom.worker.texts import Texts

#: Several scripts, and emoji of several code points.
TEXTS = [*(text for text in SCRIPTS if "\u2581" not in text), *EMOJI]

#: Byte-level BPE, real and made; by score with byte fallback, and one with tied scores; and three bytes a token.
NAMES = ("smollm2", "byte_level", "score", "score_tied", "three_bytes")


class Vocabulary:
    """One model's tokens. ``tokens``: those of a text that follows other text."""

    def __init__(self, name: str, metadata: dict[str, Any], tokens: Callable[[str], list[int]] | None = None) -> None:
        self.name = name
        self.metadata = metadata
        self.tokenizer = Tokenizer.from_metadata(metadata)
        self.texts = Texts(metadata)
        self.tokens = tokens or partial(self.tokenizer.encode, continues=True)

    def find_byte(self, value: int) -> int | None:
        """The token of one byte; the real vocabulary has some of them only."""
        level = self.metadata["tokenizer.ggml.model"] == "gpt2"
        return self.tokenizer.token_id(BYTE_TO_CHAR[value] if level else f"<0x{value:02X}>")

    def byte(self, value: int) -> int:
        """The token of a byte that every vocabulary here has."""
        token = self.find_byte(value)
        assert token is not None, f"no token is the byte {value:#x} in {self.name}"
        return token

    def spelled(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens, without special ones."""
        spoken = (token for token in tokens if not self.tokenizer.is_special(token))
        return b"".join(map(self.tokenizer.token_bytes, spoken))


def vocabulary(name: str, model_path: Path) -> Vocabulary:
    """One of ``NAMES``; the model file is that of the real one."""
    if name == "three_bytes":
        return three_bytes(TEXTS)
    if name == "smollm2":
        return Vocabulary(name, dict(read_metadata(model_path)))
    metadata = json.loads((Path(__file__).parent / "data" / "text" / f"{name}.json").read_text())["metadata"]
    pre = {"tokenizer.ggml.pre": "llama-bpe"} if name == "byte_level" else {}
    return Vocabulary(name, {**metadata, **pre})


def three_bytes(texts: Sequence[str]) -> Vocabulary:
    """Every byte, each three bytes in a row of the texts, and an end: tokens begin and end anywhere in characters."""
    cut = [text.encode()[at : at + 3] for text in texts for at in range(0, len(text.encode()), 3)]
    spellings = list(dict.fromkeys([*(bytes([value]) for value in range(256)), *cut]))
    ids = {spelling: token for token, spelling in enumerate(spellings)}
    texts_of_tokens = ["".join(BYTE_TO_CHAR[byte] for byte in spelling) for spelling in spellings]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*texts_of_tokens, "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * len(spellings) + [3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": len(spellings),
    }

    def tokens(text: str) -> list[int]:
        data = text.encode()
        pieces = [data[at : at + 3] for at in range(0, len(data), 3)]
        return [token for piece in pieces for token in ([ids[piece]] if piece in ids else list(piece))]

    return Vocabulary("three_bytes", metadata, tokens)
