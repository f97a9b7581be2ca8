"""A stop-job that has reached a worker holds, however often the job is delivered before the worker gets to it."""

from __future__ import annotations

import pytest
from redis import Redis
from rig import Rig

from job_tools import Side, enqueue, reap, status
from scripted_worker import ScriptedCycle, ScriptedWorker
from tokenloom.schemas import MsgpackSerializer
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import OpenRequest, RewindRequest, StepRequest
from tokenloom.worker.jobs.claimed import Interruption

STEP = StepRequest(session="s", tokens=[1, 2], generation=Generation(max_tokens=8, ignore_eos=True))


@pytest.fixture
def worker(redis: Redis, monkeypatch: pytest.MonkeyPatch, signal_handlers: None) -> ScriptedWorker:
    """A worker that does not work yet."""
    monkeypatch.setenv("TOKENLOOM_ENGINE", "fake")
    return ScriptedWorker(["steps"], name="a", connection=redis, serializer=MsgpackSerializer)


def stopped_and_delivered_again(redis: Redis, worker: ScriptedWorker, *, ended: bool) -> ScriptedCycle:
    """The cycle of a worker that has read its notes: of a stop of job j, and then j was claimed again."""
    enqueue(redis, "s", "j")
    side = Side(redis, "a")
    first = side.take_one()
    worker.active.add([first])
    worker.request_stop_execution(first.execution.id)
    if ended:
        worker.active.ended(first)
        redis.hdel("rq:job:j", "tokenloom_stop")
    redis.hset("rq:job:j", "status", "queued")
    redis.rpush("rq:queue:steps", "j")
    second = side.take_one()
    second.stopped = False  # as if the claim had been a moment ahead of the stop
    worker.active.add([second])
    cycle = ScriptedCycle(redis, None, "a")  # type: ignore[arg-type]  # no job ends here
    cycle.take([second])
    worker.read_notes(cycle)
    return cycle


def test_a_stop_holds_for_a_job_that_is_claimed_again_before_its_note_is_read(
    redis: Redis, worker: ScriptedWorker
) -> None:
    assert stopped_and_delivered_again(redis, worker, ended=False).why == {"j": "stopped"}


def test_a_stop_does_not_hold_for_a_later_run_of_its_job(redis: Redis, worker: ScriptedWorker) -> None:
    assert stopped_and_delivered_again(redis, worker, ended=True).why == {}


@pytest.mark.parametrize("why", ["stopped", "timeout"])
@pytest.mark.parametrize("turns", [0, 2])
def test_an_end_asked_for_holds_for_a_job_delivered_again_before_the_next_turn(
    rig: Rig, turns: int, why: Interruption
) -> None:
    rig.run(OpenRequest(session="s"))
    rig.take(rig.claim(STEP, "same"))
    for _ in range(turns):
        rig.cycle.turn()
    rig.cycle.interrupt("same", why)
    rig.take(rig.claim(STEP, "same"))
    rig.turn()
    assert rig.outcomes.dropped == ["same"]
    assert rig.outcomes.errors["same"].code == why
    assert rig.outcomes.interruptions == {"same": why}
    assert len(rig.log("s")) <= 2 + turns


def test_a_stop_holds_for_a_job_delivered_again_with_its_session_anew(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), StepRequest(session="s", tokens=[1, 2], generation=Generation(max_tokens=0)))
    rig.take(rig.claim(RewindRequest(session="s", to=1), "same"))
    rig.cycle.interrupt("same", "stopped")
    rig.redis.hdel(rig.keys.session("s"), "owner")  # so that the next claim brings another epoch
    rig.take(rig.claim(RewindRequest(session="s", to=1), "same"))
    rig.turn()
    assert rig.outcomes.errors["same"].code == "stopped"
    assert len(rig.log("s")) == 2


def test_a_cancel_is_not_held_against_a_job_that_was_requeued_since(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    rig.take(rig.claim(STEP, "same"))
    rig.cycle.interrupt("same", "cancelled")
    rig.take(rig.claim(STEP, "same"))
    rig.turn()
    assert rig.outcome("same").reason == "length"


@pytest.mark.parametrize("turns", [0, 2])
def test_a_stop_that_came_with_a_claim_ends_its_job(rig: Rig, turns: int) -> None:
    rig.run(OpenRequest(session="s"))
    if turns:
        rig.take(rig.claim(STEP, "same"))
    for _ in range(turns):
        rig.cycle.turn()
    rig.take(rig.claim(STEP, "same", stopped=True))
    rig.turn()
    assert rig.outcomes.interruptions == {"same": "stopped"}
    assert len(rig.log("s")) <= 2 + turns


@pytest.mark.parametrize("text", ["hang", "anything"])
def test_a_stop_holds_when_the_worker_dies_before_it_gets_to_it(
    redis: Redis, worker: ScriptedWorker, text: str
) -> None:
    enqueue(redis, "s", "j", kwargs={"text": text, "generation": {"max_tokens": 10**6}})
    dead = Side(redis, "dead")
    dead.source.remember_stop(dead.take_one())
    dead.die()
    assert reap(Side(redis, "b")) == {"dead": 1}
    worker.work(burst=True)
    assert status(redis, "j") == "stopped"
    assert not redis.hexists("rq:job:j", "tokenloom_stop")


def test_a_stop_that_comes_after_the_end_is_not_kept(redis: Redis, worker: ScriptedWorker) -> None:
    enqueue(redis, "s", "j")
    worker.work(burst=True)
    side = Side(redis, "b")
    redis.hset("rq:job:j", "status", "queued")
    redis.rpush("rq:queue:steps", "j")
    claimed = side.take_one()
    redis.delete(claimed.execution.key)
    side.source.remember_stop(claimed)
    assert not redis.hexists("rq:job:j", "tokenloom_stop")
