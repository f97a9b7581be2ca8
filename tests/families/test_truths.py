"""The engine makes of every tiny file what llama.cpp makes of it: whole rows of logits, and the tokens that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.driving import feed, generate
from families.table import FILES, NOT_YET
from families.truths import GREEDY, LENGTHS, Truth, ratio
from tokenloom.native_ext.engine import EngineSettings, ModelError
from tokenloom.native_ext.ggml import load

#: Of the true row's range.
LIMIT = 1e-3


def settings(path: Path) -> EngineSettings:
    return EngineSettings(model=path, kv_bytes=1 << 25, threads=1, max_batch_tokens=64, max_sequences=2)


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return FILES[request.param].write(tmp_path / "model.gguf")


@pytest.mark.parametrize("name", FILES)
def test_a_truth_is_there_and_is_of_this_file(name: str) -> None:
    truth = Truth.load(name)
    assert truth.digest == FILES[name].digest(), "the file changed: make truths"
    assert truth.rows.shape == (len(LENGTHS), FILES[name].vocabulary)
    assert (truth.prompt.shape, truth.greedy.shape) == ((LENGTHS[-1],), (GREEDY,))
    assert np.isfinite(truth.rows).all()
    assert int(truth.rows[-1].argmax()) == truth.greedy[0]


@pytest.mark.parametrize(("name", "model"), [(name, name) for name in FILES if name not in NOT_YET], indirect=["model"])
def test_rows_and_greedy_tokens_are_those_of_llama_cpp(name: str, model: Path) -> None:
    truth = Truth.load(name)
    engine = load(settings(model))
    try:
        off = []
        for length, true in zip(LENGTHS, truth.rows, strict=True):
            sequence = engine.new()
            off.append(ratio(feed(engine, sequence, truth.prompt[:length].tolist())[1], true))
            engine.remove(sequence)
        assert max(off) <= LIMIT, f"{name}: max |difference| / range " + ", ".join(
            f"{each:.1e} behind {length} tokens" for length, each in zip(LENGTHS, off, strict=True)
        )
        tokens, _ = generate(engine, engine.new(), truth.prompt.tolist(), GREEDY)
        assert tokens == truth.greedy.tolist(), name
    finally:
        engine.close()


@pytest.mark.parametrize(("name", "model"), [(name, name) for name in sorted(NOT_YET)], indirect=["model"])
def test_what_does_not_open_yet_is_refused_by_name(name: str, model: Path) -> None:
    with pytest.raises(ModelError, match=FILES[name].architecture):
        load(settings(model))


def test_two_truths_differ_where_their_files_do() -> None:
    """Of each family's variants: else what is special about one does not show in its truth."""
    seen: dict[bytes, str] = {}
    alike = {"llama-neutral": "llama", "llama-arrays": "llama", "qwen3-neutral": "qwen3"}  # the same in other words
    for name in FILES:
        rows = Truth.load(name).rows.tobytes()
        assert seen.get(rows, name) in (name, alike.get(name)), f"{name} has the truth of {seen[rows]}"
        seen.setdefault(rows, name)
