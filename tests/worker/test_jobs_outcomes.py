"""An end that has happened reaches Redis once, whatever becomes of the connection meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, ResponseError, WatchError
from rq import Callback, Retry
from rq.job import Dependency

from job_tools import KEYS, Side, enqueue, field, ids, status
from scripted_worker import ScriptedWorker, result_of
from tokenloom.schemas import MsgpackSerializer, TokenloomError
from tokenloom.worker.jobs.active import ActiveJobs
from tokenloom.worker.jobs.claimed import Claimed
from tokenloom.worker.jobs.fence import FencedPipeline, Lost
from tokenloom.worker.jobs.finalizer import Finalizer
from tokenloom.worker.jobs.outcomes import RedisOutcomes

NOTED = "scripted_worker.noted_"
FAILURE = TokenloomError.of("engine", "this step fails")


class Ends:
    """A worker's outcomes without the worker: claim, end, wait."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        worker = ScriptedWorker(["steps"], name="a", connection=redis, serializer=MsgpackSerializer)
        self.side = Side(redis, "a", callbacks=(NOTED + "success", NOTED + "failure", NOTED + "stop"))
        self.active = ActiveJobs()
        self.finalizer = Finalizer(redis, KEYS, worker)
        self.outcomes = RedisOutcomes(self.finalizer, self.active)

    def take(self) -> Claimed:
        claimed = self.side.take_one()
        self.active.add([claimed])
        return claimed

    def flush(self) -> None:
        assert self.outcomes.flush(10)
        assert not self.active.known()
        assert not self.active.executions


@pytest.fixture
def ends(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setenv("TOKENLOOM_ENGINE", "fake")
    made = Ends(redis)
    yield made
    made.outcomes.close()


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], list[str]]:
    """Makes the next transaction raise ``before`` it happens or ``after`` it has, once; returns a growing list."""
    real = FencedPipeline._execute

    def make(when: str, error: Exception) -> list[str]:
        done: list[str] = []

        def execute(self: FencedPipeline, raise_on_error: bool) -> list[Any]:
            if done:
                return real(self, raise_on_error)
            done.append(when)
            if when == "after":
                real(self, raise_on_error)
            else:
                self.reset()
            raise error

        monkeypatch.setattr(FencedPipeline, "_execute", execute)
        return done

    return make


LOST = ConnectionError("the line was cut")


@pytest.mark.parametrize("when", ["before", "after"])
def test_success_is_stored_once(redis: Redis, ends: Ends, transactions: Callable[..., list[str]], when: str) -> None:
    enqueue(redis, "s", "j", on_success=Callback(NOTED + "success"))
    enqueue(redis, "t", "next", depends_on="j")
    claimed = ends.take()
    done = transactions(when, LOST)
    ends.outcomes.finish(claimed, result_of(claimed))
    ends.flush()
    assert done == [when]
    assert status(redis, "j") == "finished"
    assert redis.xlen("rq:results:j") == 1
    assert ids(redis, "callbacks") == ["success:j:s"]
    assert ids(redis) == ["next"]
    assert redis.zcard(KEYS.worker_jobs("a")) == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_failure_spends_one_retry(redis: Redis, ends: Ends, transactions: Callable[..., list[str]], when: str) -> None:
    enqueue(redis, "s", "j", retry=Retry(max=3), on_failure=Callback(NOTED + "failure"))
    enqueue(redis, "t", "anyway", depends_on=Dependency("j", allow_failure=True))
    transactions(when, LOST)
    ends.outcomes.fail(ends.take(), FAILURE)
    ends.flush()
    assert field(redis, "rq:job:j", "retries_left") == "2"
    assert ids(redis) == ["j"]
    assert status(redis, "anyway") == "deferred"
    assert ids(redis, "callbacks") == ["failure:j:WorkerFailed"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_last_failure_frees_what_may_run_after_it(
    redis: Redis, ends: Ends, transactions: Callable[..., list[str]], when: str
) -> None:
    enqueue(redis, "s", "j")
    enqueue(redis, "t", "anyway", depends_on=Dependency("j", allow_failure=True))
    transactions(when, LOST)
    ends.outcomes.fail(ends.take(), FAILURE)
    ends.flush()
    assert status(redis, "j") == "failed"
    assert redis.xlen("rq:results:j") == 1
    assert ids(redis) == ["anyway"]


@pytest.mark.parametrize("interruption", [None, "stopped", "cancelled", "timeout"])
@pytest.mark.parametrize("error", [LOST, WatchError("a heartbeat")])
def test_every_end_survives_a_cut(
    redis: Redis, ends: Ends, transactions: Callable[..., list[str]], interruption: Any, error: Exception
) -> None:
    enqueue(redis, "s", "j")
    transactions("before", error)
    ends.outcomes.fail(ends.take(), FAILURE, interruption)
    ends.flush()
    expected = {None: "failed", "stopped": "stopped", "cancelled": "canceled", "timeout": "failed"}
    assert status(redis, "j") == expected[interruption]
    assert redis.zcard("rq:wip:steps") == 0


def test_ends_keep_their_order(redis: Redis, ends: Ends) -> None:
    for number in range(20):
        enqueue(redis, "s", f"j{number}", on_success=Callback(NOTED + "success"))
    for _ in range(20):
        claimed = ends.take()
        ends.outcomes.finish(claimed, result_of(claimed))
    ends.flush()
    assert ids(redis, "callbacks") == [f"success:j{number}:s" for number in range(20)]


def test_the_end_of_a_job_that_went_elsewhere_changes_nothing(redis: Redis, ends: Ends) -> None:
    """The job was put back and another worker runs it; neither success nor failure of the former run may show."""
    for number in range(2):
        enqueue(
            redis, f"s{number}", f"j{number}", retry=Retry(max=3, interval=5), on_failure=Callback(NOTED + "failure")
        )
    first, second = ends.take(), ends.take()
    ends.side.lease.retire()
    other = Side(redis, "b")
    assert other.take() == ["j0", "j1"]
    before = {key: redis.dump(key) for key in redis.scan_iter() if b"rq:worker:a" not in key}
    ends.outcomes.finish(first, result_of(first))
    ends.outcomes.fail(second, FAILURE)
    ends.flush()
    assert {key: redis.dump(key) for key in redis.scan_iter() if b"rq:worker:a" not in key} == before


def test_a_dropped_job_is_not_touched(redis: Redis, ends: Ends) -> None:
    enqueue(redis, "s", "j")
    claimed = ends.take()
    ends.outcomes.drop(claimed)
    ends.flush()
    assert status(redis, "j") == "started"


def test_what_redis_refuses_becomes_a_failure(redis: Redis, ends: Ends, transactions: Callable[..., list[str]]) -> None:
    enqueue(redis, "s", "j")
    transactions("before", ResponseError("value is not an integer or out of range"))
    claimed = ends.take()
    ends.outcomes.finish(claimed, result_of(claimed))
    ends.flush()
    assert status(redis, "j") == "failed"
    assert redis.zcard("rq:wip:steps") == 0


def test_scripts_are_loaded_again_when_redis_forgot_them(redis: Redis, ends: Ends) -> None:
    enqueue(redis, "s", "j")
    redis.script_flush()
    claimed = ends.take()
    redis.script_flush()
    ends.outcomes.finish(claimed, result_of(claimed))
    ends.flush()
    assert status(redis, "j") == "finished"


def test_a_fence_that_falls_during_the_transaction_stops_it(redis: Redis, ends: Ends) -> None:
    redis.set("fence", 1)
    ends.finalizer.fenced.fence = "fence"
    pipe = ends.finalizer.fenced.pipeline()
    pipe.watch("other")
    pipe.multi()
    pipe.set("written", 1)
    redis.delete("fence")
    with pytest.raises(WatchError):
        pipe.execute()
    pipe.set("written", 1)
    with pytest.raises(Lost):
        pipe.execute()
    assert not redis.exists("written")


def test_a_callback_that_takes_too_long_fails_the_job(
    redis: Redis, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr("scripted_worker.noted_success", endless)
    enqueue(redis, "s", "j", on_success=Callback(NOTED + "success", timeout=1))
    enqueue(redis, "s", "k")
    for _ in range(2):
        claimed = ends.take()
        ends.outcomes.finish(claimed, result_of(claimed))
    ends.flush()
    assert status(redis, "j") == "failed"
    assert status(redis, "k") == "finished"
