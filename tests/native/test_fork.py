"""An engine in a process forked from its own, where its threads are not: refused at once, never waited for."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry
from tokenloom.native_ext.ggml import GgmlEngine, load

SECONDS = 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return TinyLlama(layers=1).write(tmp_path / "model.gguf")


def opened(model: Path) -> GgmlEngine:
    return load(EngineSettings(model=model, threads=2, kv_bytes=4 << 20))


def in_child(body: Callable[[], None]) -> None:
    """Fails when the body raises in a forked child, or does not end there."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            body()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture(params=["ours", "ggml"])
def engine(request: pytest.FixtureRequest, model: Path, monkeypatch: pytest.MonkeyPatch) -> GgmlEngine:
    """With threads of our own, and with ggml's besides."""
    if request.param == "ggml":
        monkeypatch.setenv("TOKENLOOM_KERNELS", "ggml")
    engine = opened(model)
    engine.forward([Entry(engine.new(), list(range(40)))])
    return engine


def test_every_use_in_a_forked_process_is_refused(engine: GgmlEngine) -> None:
    parent = os.getpid()
    uses: list[Callable[[], object]] = [
        engine.new,
        lambda: engine.forward([Entry(0, [1])]),
        lambda: engine.clone(0),
        lambda: engine.rewind(0, 1),
        lambda: engine.remove(0),
        lambda: engine.length(0),
        lambda: engine.pages_needed({0: 1}),
        lambda: engine.stats,
    ]

    def child() -> None:
        for use in uses:
            with pytest.raises(EngineError, match=f"loaded by process {parent} .* in process {os.getpid()}, .*forked"):
                use()

    in_child(child)
    assert engine.length(0) == 40


def test_closing_in_a_forked_process_returns_at_once_and_harms_nobody(engine: GgmlEngine) -> None:
    def child() -> None:
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < SECONDS / 4
        with pytest.raises(EngineError, match="closed"):
            engine.new()

    in_child(child)
    assert len(engine.forward([Entry(0, [1], logits="last")])) == 1
    engine.close()


def test_an_engine_forgotten_in_a_forked_process_is_not_waited_for(model: Path) -> None:
    held = [opened(model)]
    in_child(held.clear)
    assert held[0].new() == 0  # unharmed where it was loaded
    held.clear()


def test_a_forked_process_loads_an_engine_of_its_own(model: Path, engine: GgmlEngine) -> None:
    prompt = Entry(engine.new(), [5, 6, 7], logits="all")
    expected = engine.forward([prompt])[0].logits

    def child() -> None:
        engine.close()
        own = opened(model)
        assert np.array_equal(own.forward([Entry(own.new(), [5, 6, 7], logits="all")])[0].logits, expected)
        own.close()

    in_child(child)


def test_a_process_of_multiprocessing_ends(engine: GgmlEngine) -> None:
    process = multiprocessing.get_context("fork").Process(target=engine.close)
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 0


def test_an_engine_is_not_sent_to_another_process(engine: GgmlEngine) -> None:
    """As `spawn` and `forkserver` would."""
    with pytest.raises(EngineError, match=f"loaded by process {os.getpid()} and stays there: load one in the other"):
        pickle.dumps(engine)
    assert engine.length(0) == 40
