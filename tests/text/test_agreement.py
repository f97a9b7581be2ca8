"""Token for token what llama.cpp says (make_oracle.py asked it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenloom.worker.text import Tokenizer
from tokenloom.worker.text.pretokenizers import SUPPORTED

DATA = Path(__file__).parent.parent / "data" / "text"
TEXTS = json.loads((DATA / "texts.json").read_text())
BYTE_LEVEL = json.loads((DATA / "byte_level.json").read_text())


def differences(tokenizer: Tokenizer, given: dict[str, Any]) -> list[str]:
    """Where ``tokenizer`` and llama.cpp part, as sentences."""
    asked = {
        "plain": (TEXTS["plain"], False, False),
        "unparsed": (TEXTS["special"], False, False),
        "parsed": (TEXTS["special"], True, False),
        "bos": (TEXTS["plain"][:8] + TEXTS["special"], True, True),
    }
    found = []
    for part, (texts, special, bos) in asked.items():
        assert len(texts) == len(given[part])
        for text, expected in zip(texts, given[part], strict=True):
            got = tokenizer.encode(text, parse_special=special, add_bos=bos)
            if got != expected:
                found.append(f"{part} {text!r}: {got}, llama.cpp has {expected}")
    if sorted(tokenizer.stop_tokens) != given["stops"]:
        found.append(f"stop tokens {sorted(tokenizer.stop_tokens)}, llama.cpp has {given['stops']}")
    return found


def test_the_texts_are_a_few_hundred_and_of_every_kind() -> None:
    joined = "".join(TEXTS["plain"])
    assert len(TEXTS["plain"]) + len(TEXTS["special"]) > 300
    for sample in (
        "def ",
        "👩‍💻",
        "🇫🇷",
        "世界",
        "العالم",
        "עולם",
        "हिन्दी",
        "ภาษาไทย",
        " " * 64,
        "\n\n\n\n",
        "\t\t",
        "1234567",
        "\x00",
    ):
        assert sample in joined


def test_smollm2_tokenizes_as_llama_cpp_does(smollm2: Tokenizer) -> None:
    assert differences(smollm2, json.loads((DATA / "smollm2.json").read_text())) == []


@pytest.mark.parametrize("name", SUPPORTED)
def test_pre_tokenizer_cuts_as_llama_cpp_does(name: str) -> None:
    first, own = BYTE_LEVEL["answers"][0], BYTE_LEVEL["answers"][BYTE_LEVEL["by_name"][name]]
    given = {part: [own[part].get(i, answer) for i, answer in first[part].items()] for part in first}
    tokenizer = Tokenizer.from_metadata({**BYTE_LEVEL["metadata"], "tokenizer.ggml.pre": name})
    assert differences(tokenizer, given) == []


@pytest.mark.parametrize("name", ["score", "score_tied", "score_no_space"])
def test_sentencepiece_joins_by_score_as_llama_cpp_does(name: str) -> None:
    data = json.loads((DATA / f"{name}.json").read_text())
    assert differences(Tokenizer.from_metadata(data["metadata"]), data["answers"]) == []
