"""Every weight type, on every instruction set of this machine, in every way to compute a row: the same bits.

Small models with random weights. What all are compared with, for a type, is the reference kernels' one forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from engine.ways import WAYS, Logits, chunks_of, differing, exactly, random_tokens, whole
from native.tiny_llama import TinyLlama
from quality.models import TYPES, encode
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core

KERNELS = core.usable_kernels(emulated=True)
REFERENCE = "portable"
LENGTH = 150  # three pages

VNNI = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"}
#: What a CPU must say of itself (/proc/cpuinfo) for kernels to be usable. Names that are not here are not asked for.
NEEDED = {
    "portable": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "vnni": VNNI,
    "amx-emulated": VNNI,
    "amx": VNNI | {"amx_tile", "amx_int8"},
}

LoadTiny = Callable[..., GgmlEngine]


def model(kind: str) -> TinyLlama:
    """Numbers of columns that the type's blocks divide; a vocabulary and a feed-forward that groups of 16 do not."""
    if kind.endswith("_K"):
        return TinyLlama(layers=1, embedding=256, feed_forward=256, heads=4, kv_heads=2, head_size=64)
    return TinyLlama(biases=kind in ("Q8_0", "F16"), tied=kind in ("Q5_0", "BF16"))


@pytest.fixture(scope="module")
def load_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadTiny]:
    """Loads the model of a type with some kernels."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def written(kind: str) -> Path:
        return model(kind).write_as(folder / f"{kind}.gguf", kind, encode)

    patch = pytest.MonkeyPatch()

    def loader(kind: str, kernels: str, threads: int = 1, kv_type: Literal["f16", "int8"] = "f16") -> GgmlEngine:
        patch.setenv("TOKENLOOM_KERNELS", kernels)
        settings = EngineSettings(model=written(kind), kv_bytes=8 << 20, kv_type=kv_type, max_batch_tokens=2048)
        with exactly(threads):
            engine = load(settings)
        used, packed, others = engine._open.weights()
        assert (used, {name.upper() for name in packed}, others) == (kernels, {kind}, {})
        assert engine.geometry.threads == threads
        return engine

    yield loader
    patch.undo()


@pytest.fixture(scope="module")
def expected(load_tiny: LoadTiny) -> Callable[[str], Logits]:
    @cache
    def of(kind: str) -> Logits:
        engine = load_tiny(kind, REFERENCE)
        rows = whole(engine, random_tokens(engine, 5, LENGTH))
        assert np.ptp(rows) > 1  # else equal rows would mean nothing
        assert len(np.unique(rows, axis=0)) == LENGTH
        return rows

    return of


def test_every_instruction_set_of_this_machine_is_among_them() -> None:
    """Kernels that compute something else than the reference are not usable, and would be left out here."""
    line = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
    )
    flags = set(line.partition(":")[2].split())
    assert {name for name, needed in NEEDED.items() if needed <= flags} <= set(KERNELS)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_way_gives_the_reference_bits(
    kind: str, kernels: str, load_tiny: LoadTiny, expected: Callable[[str], Logits]
) -> None:
    engine = load_tiny(kind, kernels)
    tokens = random_tokens(engine, 5, LENGTH)
    results = {name: way(engine, tokens) for name, way in WAYS.items()}
    results["whole"] = (list(range(LENGTH)), whole(engine, tokens))
    assert engine.stats.pages_used == 0
    assert not differing(results, expected(kind))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0"])
def test_every_way_gives_the_same_bits_with_cells_of_int8(
    kind: str, kernels: str, load_tiny: LoadTiny, expected: Callable[[str], Logits]
) -> None:
    reference = load_tiny(kind, REFERENCE, kv_type="int8")
    tokens = random_tokens(reference, 5, LENGTH)
    rows = whole(reference, tokens)
    assert not any(np.array_equal(row, wide) for row, wide in zip(rows, expected(kind), strict=True))
    engine = load_tiny(kind, kernels, kv_type="int8")
    results = {name: way(engine, tokens) for name, way in WAYS.items()}
    results["whole"] = (list(range(LENGTH)), whole(engine, tokens))
    results["two threads"] = WAYS["clones"](load_tiny(kind, kernels, threads=2, kv_type="int8"), tokens)
    assert not differing(results, rows)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F16"])
def test_on_more_threads(
    kind: str, kernels: str, threads: int, load_tiny: LoadTiny, expected: Callable[[str], Logits]
) -> None:
    engine = load_tiny(kind, kernels, threads)
    tokens = random_tokens(engine, 5, LENGTH)
    results = {name: WAYS[name](engine, tokens) for name in ("chunks of 64", "chunks of 7", "among 32", "clones")}
    assert not differing(results, expected(kind))


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "F16"])
def test_chunks_of_700_512_and_64(kind: str, load_tiny: LoadTiny) -> None:
    engine = load_tiny(kind, KERNELS[-1])
    tokens = random_tokens(engine, 6, 720)
    results = {str(chunk): chunks_of(chunk)(engine, tokens) for chunk in (700, 512, 64)}
    assert not differing(results, whole(engine, tokens))
