"""Vocabularies for the tests of text: the real one, and the made ones with llama.cpp's answers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tokenloom.native_ext.gguf import read_metadata
from tokenloom.worker.text import Tokenizer

DATA = Path(__file__).parent.parent / "data" / "text"


@cache
def answers(name: str) -> Any:
    """The content of one file of tests/data/text."""
    return json.loads((DATA / name).read_text())


@pytest.fixture(scope="session")
def smollm2_metadata(model_path: Path) -> dict[str, Any]:
    """The real model file's metadata."""
    return read_metadata(model_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    """The real model file's tokenizer."""
    return Tokenizer.from_metadata(smollm2_metadata)


@pytest.fixture(scope="session")
def byte_level_metadata() -> dict[str, Any]:
    """A small byte-level vocabulary, under the pre-tokenizer llama-bpe."""
    return {**answers("byte_level.json")["metadata"], "tokenizer.ggml.pre": "llama-bpe"}


@pytest.fixture(scope="session")
def score_metadata() -> dict[str, Any]:
    """A small SentencePiece-style vocabulary."""
    return dict(answers("score.json")["metadata"])


@pytest.fixture(scope="session")
def score(score_metadata: dict[str, Any]) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_metadata(score_metadata)
