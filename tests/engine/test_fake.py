"""What the engine ``fake`` offers beyond the contract: ways to be slow, to fail, and to die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.driving import GREEDY, feed, generate, prompt, same_bits
from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry, Sampling
from tokenloom.native_ext.fake import PAGE_BYTES, FakeEngine, FakeSettings
from tokenloom.native_ext.fake_vocabulary import END, SPOKEN

SETTINGS = EngineSettings(model=Path("none"), kv_bytes=8 * PAGE_BYTES)
DIE = """
from pathlib import Path
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.fake import load
engine = load(EngineSettings(model=Path()))
sequence = engine.new()
engine.forward([Entry(sequence, [1, 2])])
print("alive", flush=True)
engine.forward([Entry(sequence, [3, 77])])
print("still alive", flush=True)
"""


def test_any_loss_doubling_or_swap_changes_everything_after_it() -> None:
    engine = FakeEngine(SETTINGS)
    history = prompt(20)
    variants = [history, history[1:], history[:-1], history[:5] + history[4:], [*history[1::-1], *history[2:]]]
    rows = []
    for tokens in variants:
        sequence = engine.new()
        rows.append(feed(engine, sequence, [*tokens, 9])[1])
        engine.remove(sequence)
    assert not any(same_bits(one, other) for one in rows for other in rows if one is not other)


def test_it_speaks_only_the_likely_tokens() -> None:
    engine = FakeEngine(SETTINGS)
    for sampling in (GREEDY, Sampling(temperature=1.5, seed=4)):
        generated, _ = generate(engine, engine.new(), prompt(3), 100, sampling)
        assert set(generated) <= set(SPOKEN)
        assert len(set(generated)) > 20


def test_the_end_token_comes_one_in_so_many_times() -> None:
    engine = FakeEngine(SETTINGS, FakeSettings(end_one_in=10))
    ended = 0
    for seed in range(300):
        sequence = engine.new()
        ended += feed(engine, sequence, prompt(2, seed), GREEDY)[0] == END
        engine.remove(sequence)
    assert 10 < ended < 60


def test_a_failing_token_fails_its_batch_and_changes_nothing() -> None:
    engine = FakeEngine(SETTINGS, FakeSettings(fail_token=77))
    first, second = engine.new(), engine.new()
    feed(engine, first, prompt(30, 1))
    clone = engine.clone(first)
    used = engine.stats.pages_used
    for _ in range(3):
        with pytest.raises(EngineError, match="told to fail on token 77"):
            engine.forward([Entry(first, [5], GREEDY), Entry(clone, [6]), Entry(second, [8, 77])])
        assert [engine.length(sequence) for sequence in (first, clone, second)] == [30, 30, 0]
        assert engine.stats.pages_used == used
    expected = feed(engine, engine.new(), [*prompt(30, 1), 5])[1]
    assert same_bits(feed(engine, first, [5])[1], expected)
    assert same_bits(feed(engine, clone, [5])[1], expected)


def test_a_killing_token_kills_the_process() -> None:
    run = subprocess.run(
        [sys.executable, "-c", DIE],
        env={"TOKENLOOM_FAKE_KILL_TOKEN": "77", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "alive\n")


def test_forwards_take_the_time_they_are_told_to() -> None:
    engine = FakeEngine(SETTINGS, FakeSettings(seconds=0.02, token_seconds=0.01))
    started = time.perf_counter()
    engine.forward([Entry(engine.new(), [1, 2, 3])])
    assert time.perf_counter() - started >= 0.05
    assert engine.stats.seconds >= 0.05


def test_settings_come_from_the_environment() -> None:
    settings = FakeSettings.from_environment(
        {"TOKENLOOM_FAKE_SECONDS": "0.5", "TOKENLOOM_FAKE_FAIL_TOKEN": "7", "TOKENLOOM_FAKE_CONTEXT": "99", "HOME": "x"}
    )
    assert settings == FakeSettings(seconds=0.5, fail_token=7, context=99)
    with pytest.raises(EngineError, match="TOKENLOOM_FAKE_KILL_TOKEN is 'x'; it must be of type int"):
        FakeSettings.from_environment({"TOKENLOOM_FAKE_KILL_TOKEN": "x"})


def test_a_byte_budget_below_one_page_is_refused() -> None:
    with pytest.raises(EngineError, match=f"kv_bytes is 5; it must be at least {PAGE_BYTES}"):
        FakeEngine(EngineSettings(model=Path(), kv_bytes=5))
