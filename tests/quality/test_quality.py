"""No weight type costs more quality than in llama.cpp: divergence from the float16 model over ordinary text.

A quick version of benchmarks/quality.py, which stores llama.cpp's figures of the same few tokens in figures.json
(``--store``). K types are in the matrices whose columns allow it here, the others are Q8_0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from native.tiny_llama import TinyLlama
from quality import llama_cpp
from quality.divergence import FLOOR, MOST, divergence, few, ours
from quality.models import TYPES, Source, is_wide
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load

FIGURES: dict[str, Any] = json.loads((Path(__file__).parent / "figures.json").read_text())


@pytest.fixture(scope="module")
def source(model_path: Path) -> Source:
    return Source.read(model_path)


@pytest.fixture(scope="module")
def true(source: Source, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The float16 model's own logits: llama.cpp's, everything in float32."""
    folder = tmp_path_factory.mktemp("quality")
    path = source.write(folder / "exact.gguf", "F32")
    logits = llama_cpp.logits(path, few(model_path), folder / "exact.npy", exact_cells=True)
    path.unlink()
    return logits


@pytest.mark.parametrize("kind", TYPES)
def test_no_more_than_in_llama_cpp(kind: str, source: Source, true: Any, model_path: Path, tmp_path: Path) -> None:
    path = source.write(tmp_path / "model.gguf", kind, "Q8_0" if is_wide(kind) else None)
    mine = divergence(true, ours(path, few(model_path)))
    path.unlink()
    assert mine.rows == FIGURES["tokens"]
    theirs = FIGURES["llama_cpp"][kind]
    assert 0 < mine.mean <= max(MOST * theirs, FLOOR)
    assert mine.mean > theirs / 3 - FLOOR  # else it is not the same that is compared


def test_a_widened_model_is_the_same_function(tmp_path: Path) -> None:
    tiny = TinyLlama(embedding=192, feed_forward=256, heads=6, kv_heads=3, head_size=32)
    source = Source.read(tiny.write(tmp_path / "m.gguf", raw={}))
    rows = []
    for number, model in enumerate((source, source.widened())):
        engine = load(EngineSettings(model=model.write(tmp_path / f"{number}.gguf", "F32"), threads=1))
        rows.append(engine.forward([Entry(engine.new(), list(range(90)), logits="all")])[0].logits)
    assert engine.geometry.embedding == 256
    assert np.abs(rows[0] - rows[1]).max() < 1e-3 * np.abs(rows[0]).max()
