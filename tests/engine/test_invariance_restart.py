"""After a restart, what is rebuilt from the logs has the same bits: in a new process, and by a worker in mid-step.

The first life and the second have other kernels, threads and batch sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis
from rig import Rig

from engine.ways import Rows, assert_same, random_tokens, sequences, whole
from native.tiny_llama import TinyLlama
from quality.models import encode
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, OpenRequest, RewindRequest, StepRequest

KERNELS = core.usable_kernels(emulated=True)

#: Runs a log in a process of its own, and prints the rows' bytes as hex digits.
ANEW = """
import json, sys
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load
path, threads, chunk, log = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
engine = load(EngineSettings(model=path, threads=threads, kv_bytes=64 << 20))
sequence = engine.new()
for at in range(0, len(log), chunk):
    entry = Entry(sequence, log[at : at + chunk], logits="all")
    print(engine.forward([entry])[0].logits.tobytes().hex())
"""


@pytest.fixture(scope="module", params=["tiny Q4_K", "tiny BF16", "SmolLM2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    if request.param == "SmolLM2":
        return model_path
    kind = request.param.removeprefix("tiny ")
    tiny = TinyLlama(layers=2, embedding=256, feed_forward=256, heads=4, head_size=64, vocabulary=200)
    return tiny.write_as(tmp_path_factory.mktemp("restart") / f"{kind}.gguf", kind, encode)


def loaded(model: Path, kernels: str = "auto", threads: int = 1, **settings: Any) -> GgmlEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENLOOM_KERNELS", kernels)
        return load(EngineSettings(model=model, threads=threads, kv_bytes=64 << 20, **settings))


def test_in_a_new_process_on_any_instruction_set(model: Path) -> None:
    engine = loaded(model)
    log = random_tokens(engine, 31, 70)
    if engine.geometry.vocabulary > 1000:  # the real one: fewer rows, in two processes
        log, lives = log[:9], [(KERNELS[0], 1, 4), (KERNELS[-1], 2, 1)]
    else:
        lives = [(name, 1 + i % 2, chunk) for i, (name, chunk) in enumerate(product(KERNELS, (70, 9)))]
    expected = whole(engine, log)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", ANEW, str(model), str(threads), str(chunk), json.dumps(log)],
            env=os.environ | {"TOKENLOOM_KERNELS": kernels},
            stdout=subprocess.PIPE,
        )
        for kernels, threads, chunk in lives
    ]
    for process in running:
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        rows = np.frombuffer(bytes.fromhex(printed.decode().replace("\n", "")), np.float32)
        assert_same((list(range(len(log))), rows.reshape(len(log), -1)), expected)


# -- through the worker -----------------------------------------------------------------------------------------------


def step(session: str, tokens: list[int] | None, count: int, **generation: Any) -> StepRequest:
    settings = {"max_tokens": count, "ignore_eos": True, "logprobs": 3} | generation
    return StepRequest(session=session, tokens=tokens, generation=Generation(**settings))


def script(vocabulary: int) -> list[Any]:
    """A prompt over two pages, a clone within its answer, both going on, and one going back over a page's end."""
    prompt = [int(t) for t in np.random.default_rng(8).integers(3, vocabulary, 120)]
    return [
        OpenRequest(session="s", seed=1),
        step("s", prompt, 8, temperature=0.9, top_p=0.9),
        CloneRequest(session="s", targets=["t"], upto=125),
        step("t", [7, 8], 10, temperature=1.2, repetition_penalty=1.2),
        step("s", [9], 10, temperature=1.0, presence_penalty=0.5),
        RewindRequest(session="s", to=110),
        step("s", [11], 12, temperature=1.0, top_k=30),
    ]


def lived(rig: Rig) -> tuple[list[Any], dict[str, list[int]], dict[str, list[Any]]]:
    """What there is of two sessions: how each job ended, logs, and every token's log-probabilities as published."""
    results = [rig.outcome(f"j{i}").model_dump() for i in range(7)]
    for result in results:
        result.get("usage", {}).pop("cached", None)
    published = {name: [e.logprobs for e in rig.events(name) if e.type == "tokens"] for name in ("s", "t")}
    assert all(logprobs is not None for events in published.values() for logprobs in events)
    return results, {name: rig.log(name) for name in ("s", "t")}, published


def cells_of(rig: Rig, name: str) -> Rows:
    """The row behind the last token of a session, on the cells that the worker has for it, and its position."""
    session = rig.cycle.table.sessions[name]
    assert session.sequence is not None
    engine: Any = rig.engine
    cached = engine.length(session.sequence)
    assert cached >= session.length - 1 > 64
    with sequences(engine) as new:
        clone = new(session.sequence, session.length - 1)
        return [session.length - 1], engine.forward([Entry(clone, session.ids()[-1:], logits="last")])[0].logits


def in_mid_step(rig: Rig) -> bool:
    """Whether both sessions are in a step of which some tokens are there."""
    sessions = rig.cycle.table.sessions
    return all(
        name in sessions
        and sessions[name].running is not None
        and len([event for event in rig.events(name) if event.type == "tokens"]) >= least
        for name, least in {"s": 8 + 3, "t": 3}.items()
    )


@pytest.mark.parametrize("restore", ["lazy", "eager"])
def test_by_a_worker_in_mid_step(
    model: Path, restore: str, redis: Redis, make_undisturbed: Callable[[Path], Any]
) -> None:
    expected, rows, vocabulary = make_undisturbed(model)
    redis.flushall()
    requests = script(vocabulary)
    first = Rig(redis, loaded(model, KERNELS[-1], 2, max_batch_tokens=50), prefill_chunk=17)
    first.take(*(first.claim(request, f"j{i}") for i, request in enumerate(requests)))
    while not in_mid_step(first):
        assert first.cycle.turn()
    first.cycle.surrender()  # writes down what has cells, as it does about once a second
    second = Rig(
        redis, loaded(model, KERNELS[0], 1, max_batch_tokens=64), incarnation="2", prefill_chunk=64, restore=restore
    )
    second.cycle.restore()
    second.take(*(second.claim(request, f"j{i}", deaths=1) for i, request in enumerate(requests)))
    second.turn()
    assert (second.cycle.figures.restored_tokens > 0) == (restore == "eager")
    assert lived(second) == expected
    for name in ("s", "t"):
        assert_same(cells_of(second, name), rows[name])


@pytest.fixture
def make_undisturbed(redis: Redis) -> Callable[[Path], Any]:
    """The same jobs without a restart; all rows of the final logs, each run alone; the vocabulary."""

    def make(model: Path) -> Any:
        rig = Rig(redis, loaded(model))
        requests = script(rig.engine.geometry.vocabulary)
        rig.run(*(rig.claim(request, f"j{i}") for i, request in enumerate(requests)))
        engine: Any = loaded(model)
        return lived(rig), {name: whole(engine, rig.log(name)) for name in ("s", "t")}, engine.geometry.vocabulary

    return make
