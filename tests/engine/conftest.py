"""Engines to run the conformance suite on, each loaded once and handed out empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.driving import Load
from tokenloom.native_ext import fake, ggml
from tokenloom.native_ext.engine import BatchError, Engine, EngineSettings
from tokenloom.native_ext.single import SingleSequence

PAGES = 8
MAX_BATCH_TOKENS = 40
MAX_SEQUENCES = 6
#: More wait for each other in spinning barriers, which takes ten times as long when other work shares the cores.
THREADS = 1
#: SmolLM2-135M: 30 layers, 3 KV heads of 64, keys and values of 2 bytes, or of 1 with a scale of 2; 64 positions.
PAGE_BYTES = {
    "ggml": 30 * 3 * 64 * 2 * 2 * 64,
    "ggml-int8": 30 * 3 * (64 + 2) * 2 * 64,
    "fake": fake.PAGE_BYTES,
}


@pytest.fixture(scope="session")
def load(model_path: Path) -> Load:
    """Loads an engine by name, with a byte budget of so many pages and a bit."""

    def loader(name: str, pages: int = PAGES, max_batch_tokens: int = MAX_BATCH_TOKENS) -> Engine:
        settings = EngineSettings(
            model=model_path,
            kv_bytes=pages * PAGE_BYTES[name.removeprefix("single-")] + 100,
            max_batch_tokens=max_batch_tokens,
            threads=THREADS,
            max_sequences=MAX_SEQUENCES,
            kv_type="int8" if name.endswith("int8") else "f16",
        )
        engine: Engine = fake.load(settings) if name.endswith("fake") else ggml.load(settings)
        return SingleSequence(engine) if name.startswith("single-") else engine

    return loader


@pytest.fixture(scope="session")
def loaded(load: Load) -> Iterator[Callable[[str], Engine]]:
    """The engine of a name, loaded at its first use and closed after the last test."""
    engines: dict[str, Engine] = {}

    def get(name: str) -> Engine:
        if name not in engines:
            engines[name] = load(name)
        return engines[name]

    yield get
    for engine in engines.values():
        engine.close()


def emptied(engine: Engine) -> Iterator[Engine]:
    """``engine``, whose sequences are removed after the test; every page must be free then."""
    yield engine
    for sequence in range(MAX_SEQUENCES):
        try:
            engine.remove(sequence)
        except BatchError:
            continue
    stats = engine.stats
    assert (stats.sequences, stats.pages_used, stats.pages_free) == (0, 0, engine.geometry.max_pages)


@pytest.fixture(params=["ggml", "ggml-int8", "single-ggml", "fake"])
def engine(request: pytest.FixtureRequest, loaded: Callable[[str], Engine]) -> Iterator[Engine]:
    """Every engine, empty."""
    yield from emptied(loaded(request.param))


@pytest.fixture(params=["ggml", "ggml-int8", "fake"])
def many(request: pytest.FixtureRequest, loaded: Callable[[str], Engine]) -> Iterator[Engine]:
    """Every engine that holds many sequences, empty."""
    yield from emptied(loaded(request.param))


@pytest.fixture(params=["single-ggml", "single-fake"])
def single(request: pytest.FixtureRequest, loaded: Callable[[str], Engine]) -> Iterator[Engine]:
    """Engines behind the single-sequence adapter, empty."""
    yield from emptied(loaded(request.param))
