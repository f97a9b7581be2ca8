"""What a worker counts is in its hash: requeued, resumed, fenced, evicted, rebuilt, refused by reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis
from rig import Rig

from e2e.seen import QUICK, Reader, final_stats, stats_of, wait_until
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.fake import PAGE_BYTES, FakeEngine
from tokenloom.producer import Client, TokenloomError
from tokenloom.schemas import CloneRequest, Generation, OpenRequest, StepRequest
from valkey_server import ValkeyServer
from worker_process import WorkerProcess


@pytest.fixture
def make_rig(redis: Redis) -> Callable[[int], Rig]:
    """Cycles over a fake engine of so many pages."""

    def make(pages: int) -> Rig:
        settings = EngineSettings(model=None, kv_bytes=pages * PAGE_BYTES)  # type: ignore[arg-type]
        return Rig(redis, FakeEngine(settings))

    return make


@pytest.fixture
def rig(make_rig: Callable[[int], Rig]) -> Rig:
    return make_rig(1000)


PLAIN = Generation(max_tokens=2, ignore_eos=True)


def step(session: str, tokens: int = 70) -> StepRequest:
    return StepRequest(session=session, tokens=[97] * tokens, generation=PLAIN)


def test_evicted_and_rebuilt(make_rig: Callable[[int], Rig]) -> None:
    rig = make_rig(3)
    rig.run(OpenRequest(session="a", seed=1), OpenRequest(session="b", seed=2))
    rig.run(step("a"))
    assert (rig.cycle.stats()["evicted"], rig.cycle.stats()["rebuilt"]) == (0, 0)
    rig.run(StepRequest(session="b", tokens=[98] * 70, generation=PLAIN))
    assert (rig.cycle.stats()["evicted"], rig.cycle.stats()["rebuilt"]) == (1, 0)
    rig.run(step("a", 1))
    stats = rig.cycle.stats()
    assert (stats["evicted"], stats["rebuilt"], stats["rebuilt_tokens"]) == (2, 1, 72)


def test_clones_rebuild_nothing(rig: Rig) -> None:
    rig.run(OpenRequest(session="a", seed=1), step("a"), CloneRequest(session="a", targets=["b", "c"]))
    rig.run(step("b", 1), step("c", 1), step("a", 1))
    assert rig.cycle.stats()["rebuilt"] == 0


def test_fenced_and_read_again(rig: Rig, redis: Redis) -> None:
    rig.run(OpenRequest(session="a", seed=1), OpenRequest(session="b", seed=1))
    rig.take(step("a"))
    redis.hset(rig.keys.session("a"), mapping={"owner": "other#1", "epoch": 99})
    rig.turn()
    assert rig.cycle.stats()["fenced"] == 1
    rig.run(step("b"))
    rig.take(step("b"))
    redis.hset(rig.keys.session("b"), "length", 10)
    redis.set(rig.keys.log("b"), redis.getrange(rig.keys.log("b"), 0, 39))
    rig.turn()
    assert rig.cycle.stats()["reread"] == 1


def test_all_of_them_are_in_the_workers_hash(
    valkey: ValkeyServer, redis: Redis, make_worker: Callable[..., WorkerProcess]
) -> None:
    first = make_worker(name="first", engine="fake", fake_seconds=0.005, **QUICK)
    with Client(valkey.url) as client:
        session = client.open("s", seed=1)
        for bad in ({"tokens": [5000]}, {"text": "x", "at_length": 7}):
            with pytest.raises(TokenloomError):
                session.step(max_tokens=1, **bad).result(20)  # type: ignore[call-overload]
        reader = Reader(session.step("go", max_tokens=300, ignore_eos=True))
        wait_until(lambda: reader.tokens > 20)
        refused = ("refused_invalid", "refused_length_mismatch")
        wait_until(lambda: [stats_of(redis, "first").get(name) for name in refused] == [1, 1])
        first.kill()
        make_worker(name="second", engine="fake", **QUICK)
        reader.done()
        stats = final_stats(client, "second")
    assert stats["requeued"] == 1
    assert stats["resumed"] == 1
    assert stats["rebuilt"] == 1
    assert stats["rebuilt_tokens"] > 20
    for name in ("fenced", "evicted", "reread", "routed", "buried", "running", "active", "resident"):
        assert name in stats, name
