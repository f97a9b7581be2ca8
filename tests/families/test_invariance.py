"""Every family, on every instruction set of this machine, in every way to compute a row: the same bits.

The tiny files of table.py, as they are and with their matrices in Q8_0, on whose way everything else is rounded. What
all are compared with is the reference kernels' one forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.ways import WAYS, Logits, differing, exactly, random_tokens, whole
from families.table import FILES, NOT_YET
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core

KERNELS = core.usable_kernels(emulated=True)
LENGTH = 150  # three pages, and beyond every window
#: One file of each architecture, and those of others that compute something else.
NAMES = [
    *sorted({f.architecture: name for name, f in reversed(FILES.items()) if name not in NOT_YET}.values()),
    "command-r-64-layers",
    "exaone4-64-layers",
    "olmo3",
    "phi3-plain",
    "stablelm-parallel",
]
#: For all sets but the one that is chosen here.
FEW = ("chunks of 7", "among 32", "clones")


def engine_of(path: Path, kernels: str, threads: int) -> GgmlEngine:
    with pytest.MonkeyPatch.context() as patch, exactly(threads):
        patch.setenv("TOKENLOOM_KERNELS", kernels)
        return load(EngineSettings(model=path, kv_bytes=64 << 20, max_batch_tokens=2048))


@pytest.fixture(scope="module", params=[(name, kind) for name in NAMES for kind in ("F32", "Q8_0")], ids="-".join)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, kind = request.param
    return FILES[name].write(tmp_path_factory.mktemp("family") / f"{name}.gguf", kind)


@pytest.fixture(scope="module")
def tokens(path: Path) -> list[int]:
    engine = engine_of(path, "portable", 1)
    try:
        return random_tokens(engine, 7, LENGTH)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def expected(path: Path, tokens: list[int]) -> Iterator[Logits]:
    engine = engine_of(path, "portable", 1)
    yield whole(engine, tokens)
    engine.close()


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_way_on_every_set_gives_the_same_bits(
    kernels: str, path: Path, tokens: list[int], expected: Logits
) -> None:
    engine = engine_of(path, kernels, 3)
    try:
        ways = WAYS if kernels == "vnni" else {name: WAYS[name] for name in FEW}
        results = {name: way(engine, tokens) for name, way in ways.items()}
        results["whole"] = list(range(LENGTH)), whole(engine, tokens)
        assert differing(results, expected) == []
        assert (engine.stats.sequences, engine.stats.pages_used) == (0, 0)
        assert engine._open.weights()[2] == {}, "left to ggml"
    finally:
        engine.close()
