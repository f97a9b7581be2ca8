"""Packed weights take the place of the file's: in memory, and in the engine whatever the kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from native.tiny_llama import TinyLlama
from native.weights import PACKED, ROUNDED, random_weights
from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core

KERNELS = core.usable_kernels(emulated=True)
#: Whose packed form takes more bytes than the file's: their products of scales are kept as float16.
LARGER = {"Q4_K", "Q5_K", "Q6_K"}


def logits(engine: GgmlEngine, tokens: list[int]) -> npt.NDArray[Any]:
    sequence = engine.new()
    out: npt.NDArray[Any] = engine.forward([Entry(sequence, tokens, logits="all")])[0].logits
    engine.remove(sequence)
    return out


@pytest.mark.parametrize("kind", PACKED)
def test_bytes(kind: str) -> None:
    odd, _ = random_weights(np.random.default_rng(1), kind, 33, 512)
    assert core.PackedMatrix(kind.lower(), odd).bytes == core.PackedMatrix.bytes_of(kind.lower(), 33, 512)
    raw, _ = random_weights(np.random.default_rng(1), kind, 64, 512)
    ratio = core.PackedMatrix(kind.lower(), raw).bytes / raw.nbytes
    assert 1 < ratio <= 1.15 if kind in LARGER else ratio == 1


@pytest.mark.parametrize("kind", PACKED)
def test_rows_read_back(kind: str) -> None:
    raw, weights = random_weights(np.random.default_rng(3), kind, 21, 256)
    rows = core.PackedMatrix(kind.lower(), raw).rows()
    assert rows.dtype == np.float32
    assert np.abs(rows - weights).max() <= (1e-3 if kind in ROUNDED else 1e-7) * np.abs(weights).max()


@pytest.mark.parametrize("kind", ["q2_K", "iq4_nl", "tq1_0"])
def test_types_without_kernels_are_not_packed(kind: str) -> None:
    with pytest.raises(ValueError, match=f"type {kind} cannot be packed"):
        core.PackedMatrix(kind, np.zeros((1, 84 * 18 * 54), np.uint8))


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return [int(t) for t in np.random.default_rng(2).integers(0, 49152, 70)]


@pytest.fixture(scope="module")
def expected(model_path: Path, tokens: list[int]) -> npt.NDArray[Any]:
    return logits(load(EngineSettings(model=model_path, threads=1)), tokens)


@pytest.mark.parametrize("name", KERNELS)
def test_a_model_gives_the_same_bits_with_every_instruction_set(
    name: str, model_path: Path, tokens: list[int], expected: npt.NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_KERNELS", name)
    engine = load(EngineSettings(model=model_path, threads=2))
    assert engine._open.weights() == (name, {"q4_1": 210, "q8_0": 1}, {})
    assert np.array_equal(logits(engine, tokens).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", ["", "auto"])
def test_the_fastest_that_was_measured_is_chosen(name: str, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not AMX, real or emulated, which have to be named."""
    monkeypatch.setenv("TOKENLOOM_KERNELS", name)
    engine = load(EngineSettings(model=model_path, threads=1))
    assert engine._open.weights()[0] == [kernels for kernels in KERNELS if not kernels.startswith("amx")][-1]


def test_ggml_multiplies_when_asked_to(
    model_path: Path, tokens: list[int], expected: npt.NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_KERNELS", "ggml")
    engine = load(EngineSettings(model=model_path, threads=1))
    assert engine._open.weights() == ("ggml", {}, {"q4_1": 210, "q8_0": 1})
    assert engine.stats.extra["packed_weight_bytes"] == 0
    theirs = logits(engine, tokens[:20])
    assert not np.array_equal(theirs, expected[:20])  # else the setting does nothing
    assert np.linalg.norm(theirs - expected[:20]) / np.linalg.norm(theirs) < 0.1
    shared = load(EngineSettings(model=model_path, threads=2))
    assert np.array_equal(logits(shared, tokens[:20]).view(np.uint32), theirs.view(np.uint32))


def test_kernels_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_KERNELS", "quick")
    with pytest.raises(EngineError, match="TOKENLOOM_KERNELS is 'quick'; this machine has auto, ggml, portable"):
        load(EngineSettings(model=TinyLlama().write(tmp_path / "m.gguf")))


@pytest.mark.parametrize(("kind", "ours"), [("F16", True), ("IQ4_NL", False)])
def test_types_may_be_mixed(kind: str, ours: bool, tmp_path: Path) -> None:
    """Between a query and a key of int8: a value matrix that needs other activations, or that ggml multiplies."""
    model = TinyLlama(layers=1, embedding=64, weight_type=gguf.GGMLQuantizationType.Q8_0)
    value = model.tensors()["blk.0.attn_v.weight"]
    raw = value.astype(np.float16)
    if kind == "IQ4_NL":
        encoded, value = random_weights(np.random.default_rng(5), kind, *value.shape)
        raw = encoded
    path = model.write(tmp_path / "m.gguf", {"blk.0.attn_v.weight": value.astype(np.float32)})
    mixed = model.write(tmp_path / "f.gguf", raw={"blk.0.attn_v.weight": (raw, gguf.GGMLQuantizationType[kind])})
    with_it, without = (load(EngineSettings(model=p, threads=1)) for p in (mixed, path))
    assert with_it._open.weights()[1:] == (({"q8_0": 7, "f16": 1}, {}) if ours else ({"q8_0": 7}, {"iq4_nl": 1}))
    assert without._open.weights()[1:] == ({"q8_0": 8}, {})
    a, b = (logits(engine, list(range(40))) for engine in (with_it, without))
    assert np.linalg.norm(a - b) / np.linalg.norm(b) < 0.03
    shared = load(EngineSettings(model=mixed, threads=2))  # nodes of ours on threads of ggml's
    assert np.array_equal(logits(shared, list(range(40))).view(np.uint32), a.view(np.uint32))


def test_the_file_does_not_stay_in_memory_beside_the_packed_weights(model_path: Path, tokens: list[int]) -> None:
    engine = load(EngineSettings(model=model_path, threads=1))
    logits(engine, tokens)
    size = model_path.stat().st_size
    assert 0.9 * size < engine.stats.extra["packed_weight_bytes"] < 1.05 * size
    mapping = re.escape(str(model_path.resolve())) + r"\n(?:.*kB\n)*?Rss: +(\d+) kB"
    resident = [int(kib) * 1024 for kib in re.findall(mapping, Path("/proc/self/smaps").read_text())]
    assert resident
    assert min(resident) < 0.06 * size  # other engines of this process have mappings of their own
    engine.close()
