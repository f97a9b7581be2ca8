"""What the chaos run found, each in small."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rig import Rig, joined
from rq.worker import DequeueStrategy

from job_tools import KEYS, Side, enqueue, queue, reap
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest
from tokenloom.worker.jobs.active import ActiveJobs
from tokenloom.worker.jobs.contact import Contact
from tokenloom.worker.jobs.intake import Intake
from tokenloom.worker.jobs.outcomes import RedisOutcomes
from tokenloom.worker.jobs.scripts import suspect_key
from tokenloom.worker.operations import Proposal

MakeRig = Callable[..., Rig]


def step(session: str, tokens: list[int] | None = None, **generation: Any) -> StepRequest:
    settings: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True} | generation
    return StepRequest(session=session, tokens=tokens, generation=Generation(**settings))


def test_a_clone_is_told_to_its_source_only_once_its_targets_are_there(rig: Rig, redis: Redis) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2]), OpenRequest(session="t"))
    rig.take(CloseRequest(session="t"), CloneRequest(session="s", targets=["t"]), step("t", [3]))
    writes: list[tuple[str, str]] = []
    plain = rig.cycle.store.write

    def expiring(batch: Any, **options: Any) -> Any:
        if any(write.session.id == "t" and write.append for write in batch) and ("t", "state") not in writes:
            redis.delete(*(getattr(rig.keys, kind)("t") for kind in ("log", "steps", "finished", "events")))
            redis.hdel(rig.keys.session("t"), "state", "length")  # as if the closed session's keys had just expired
        answers = plain(batch, **options)
        writes.extend((write.session.id, answer.status) for write, answer in zip(batch, answers, strict=True))
        return answers

    rig.cycle.store.write = expiring
    rig.turn()
    assert ("t", "state") in writes, "the target's write was to be refused once"
    told = writes.index(("s", "ok"))
    assert ("t", "ok") in writes[:told]
    assert not rig.outcomes.errors
    assert rig.log("t")[:8] == rig.log("s")
    assert joined(rig.events("t"), inherited=rig.log("s")) == rig.log("t")


def test_reading_a_clones_target_again_keeps_the_order_of_its_source(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2]), OpenRequest(session="t"), CloseRequest(session="t"))
    names = rig.take(OpenRequest(session="t"), CloseRequest(session="t"))
    names += rig.take(CloneRequest(session="s", targets=["t"]), RewindRequest(session="s", to=0), step("t", [3]))
    rig.cycle.table.reread(rig.cycle.table.sessions["t"])
    rig.turn()
    assert rig.outcomes.order[-5:] == names
    assert rig.outcomes.results[names[2]].length == 8


def test_a_fenced_write_does_not_put_a_session_on_the_list(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="s"))
    first.take(step("s", [1], max_tokens=1))
    second = make_rig(worker="V")
    second.run(CloseRequest(session="s"))
    first.turn()
    assert first.cycle.figures.fenced == 1
    assert second.redis.zscore(second.keys.sessions, "s") is None


def test_a_closed_session_belongs_to_nobody_so_that_another_worker_may_clone_into_it(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="t"), step("t", [1]), CloseRequest(session="t"))
    assert first.redis.hget(first.keys.session("t"), "owner") is None
    assert "t" not in first.cycle.table.sessions
    second = make_rig(worker="V")
    (_, cloned) = second.run(OpenRequest(session="s"), CloneRequest(session="s", targets=["t"]))
    assert cloned.targets == ["t"]


def test_a_closed_session_with_more_jobs_stays_with_its_worker(rig: Rig) -> None:
    rig.run(OpenRequest(session="t"), CloseRequest(session="t"), OpenRequest(session="t"))
    assert rig.redis.hget(rig.keys.session("t"), "owner") == b"W#1"
    assert rig.run(step("t", [1]))[0].length == 7


def test_a_close_done_before_its_worker_died_leaves_nothing_longer_than_another(make_rig: MakeRig) -> None:
    first = make_rig(closed_ttl=20)
    first.run(OpenRequest(session="t"), step("t", [1]), first.claim(CloseRequest(session="t"), "close"))
    second = make_rig(worker="V", closed_ttl=20)
    keys = [getattr(second.keys, kind)("t") for kind in ("session", "log", "steps", "finished", "events")]
    for key in keys:
        second.redis.expire(key, 600)  # as a claim does
    (again,) = second.run(second.claim(CloseRequest(session="t"), "close", deaths=1))
    assert again.closed
    assert all(0 < second.redis.ttl(key) <= 20 for key in keys)


def test_a_closed_session_is_given_up_later_when_a_job_may_be_on_its_way(rig: Rig) -> None:
    rig.redis.rpush(rig.keys.worker_inbox("W"), "some-job")
    rig.run(OpenRequest(session="t"), CloseRequest(session="t"))
    assert rig.redis.hget(rig.keys.session("t"), "owner") == b"W#1"
    rig.redis.delete(rig.keys.worker_inbox("W"))
    rig.cycle.table.release_idle()
    assert rig.redis.hget(rig.keys.session("t"), "owner") is None


def test_a_job_that_was_never_alone_when_a_worker_died_is_not_guilty(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    (done, closed) = rig.run(
        rig.claim(step("s", [1]), deaths=7), rig.claim(CloseRequest(session="s"), deaths=7, alone=0)
    )
    assert done.reason == "length"
    assert closed.closed


def test_the_first_death_convicts_when_told_so(make_rig: MakeRig) -> None:
    rig = make_rig(max_deaths=1)
    rig.run(OpenRequest(session="s"))
    (error,) = rig.run(rig.claim(step("s", [1]), deaths=1))
    assert error.code == "poison"


def test_any_suspect_is_admitted_alone_and_marked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.run(OpenRequest(session="s"), OpenRequest(session="t"), OpenRequest(session="u"))
    waves: list[tuple[list[str], bytes | None]] = []
    plain = rig.cycle._dispatch._carry_out

    def watching(proposals: list[Proposal], begun: Any) -> None:
        jobs = [proposal.waiting.id for proposal in proposals]
        waves.append((jobs, rig.redis.get(suspect_key(rig.keys, "W"))))
        plain(proposals, begun)

    monkeypatch.setattr(rig.cycle._dispatch, "_carry_out", watching)
    rig.take(
        rig.claim(CloseRequest(session="s"), "one"),
        rig.claim(CloseRequest(session="t"), "suspect", deaths=2),
        rig.claim(CloseRequest(session="u"), "other"),
    )
    rig.turn()
    assert waves == [(["one", "other"], None), (["suspect"], b"suspect")]
    assert rig.redis.get(suspect_key(rig.keys, "W")) is None
    assert len(rig.outcomes.results) == 6


def test_hash_and_log_that_disagree_do_not_stop_the_session(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2]))
    rig.redis.hset(rig.keys.session("s"), "length", 5)
    (done,) = rig.run(step("s", [3]))
    assert done.length == 5 + 1 + 6 == len(rig.log("s"))
    rig.redis.set(rig.keys.log("s"), rig.redis.getrange(rig.keys.log("s"), 0, 4 * 7 + 1))
    (done,) = rig.run(step("s", [3]))
    assert done.length == 7 + 1 + 6 == len(rig.log("s"))
    assert rig.redis.strlen(rig.keys.log("s")) == 4 * 14


def test_a_lazy_start_leaves_no_rows_of_cells_that_nobody_has(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="s"), step("s", [1]))
    first.cycle.surrender()
    assert first.redis.exists(first.keys.worker_sequences("W"))
    second = make_rig(incarnation="2")
    second.cycle.restore()
    assert not second.redis.exists(second.keys.worker_sequences("W"))


def test_a_job_is_not_forgotten_before_the_queue_knows_that_it_ended(make_rig: MakeRig) -> None:
    first = make_rig(remember=1)
    requests = [OpenRequest(session="s", seed=1), *(step("s", [number], max_tokens=2) for number in range(5))]
    jobs = {f"j{number}": number for number in range(6)}
    first.redis.zadd(first.keys.worker_jobs("W"), dict(jobs))  # as the claim script does
    first.run(*(first.claim(request, id) for request, id in zip(requests, jobs, strict=True)))
    log = first.log("s")
    # the worker dies before RQ has heard of any of it, and all of them are delivered again
    second = make_rig(worker="V", remember=1)
    results = second.run(
        *(second.claim(request, id, deaths=1) for request, id in zip(requests, jobs, strict=True)), step("s", [9])
    )
    assert second.log("s")[: len(log)] == log
    assert [result.length for result in results[1:]] == [3, 6, 9, 12, 15, 22]
    assert second.redis.hlen(second.keys.steps("s")) == 1, "all but the last are forgotten once RQ knows"


@pytest.mark.parametrize("status", ["started", "queued"])
def test_another_worker_does_not_forget_a_job_of_which_the_queue_knows_no_end(make_rig: MakeRig, status: str) -> None:
    """A worker ends all jobs of a session, lets go of it, and dies before RQ has heard of any."""
    first = make_rig(remember=1)
    requests = [OpenRequest(session="s", seed=1), step("s", [1], max_tokens=2), CloseRequest(session="s")]
    jobs = {f"j{number}": number for number in range(3)}
    first.redis.zadd(first.keys.worker_jobs("W"), dict(jobs))  # this and the next as the claim script does
    for id in jobs:
        first.redis.hset(f"rq:job:{id}", "status", status)  # queued: put back from the dead worker meanwhile
    done = first.run(*(first.claim(request, id) for request, id in zip(requests, jobs, strict=True)))
    second = make_rig(worker="V", remember=1)
    second.run(OpenRequest(session="s", seed=2), *(step("s", [number], max_tokens=2) for number in range(3)))
    log = second.log("s")
    again = second.run(*(second.claim(request, id, deaths=1) for request, id in zip(requests, jobs, strict=True)))
    assert again == done
    assert second.log("s") == log, "nothing ran twice"
    for id in jobs:
        second.redis.hset(f"rq:job:{id}", "status", "finished")
    second.run(step("s", [9]))
    assert second.redis.hlen(second.keys.steps("s")) == 1


# -- the queue's side --------------------------------------------------------------------------------------------------


def test_a_death_alone_is_told_from_one_in_company(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    for number in range(2):
        enqueue(redis, f"s{number}", f"j{number}")
    a.take()
    a.die()
    reap(b)
    c = Side(redis, "c")
    c.take()
    redis.set(suspect_key(KEYS, "c"), "j1")
    c.die()
    reap(b)
    taken = {claimed.id: (claimed.deaths, claimed.alone) for claimed in b.claim().jobs}
    assert taken == {"j0": (1, 0), "j1": (2, 2)}


def test_a_dead_workers_session_table_expires(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    redis.hset(KEYS.worker_sequences("a"), "s", b"row")
    a.die()
    reap(b)
    assert 0 < redis.ttl(KEYS.worker_sequences("a")) <= 86400


def test_a_closed_session_does_not_expire_under_a_claimed_job(redis: Redis) -> None:
    a = Side(redis, "a")
    redis.hset(KEYS.session("s"), mapping={"state": "closed", "length": 1})
    redis.set(KEYS.log("s"), b"1234")
    for key in (KEYS.session("s"), KEYS.log("s")):
        redis.expire(key, 2)
    enqueue(redis, "s", "j0")
    a.take()
    for key in (KEYS.session("s"), KEYS.log("s")):
        assert redis.ttl(key) > 500
        redis.expire(key, 2)
    enqueue(redis, "s", "j1")
    a.take()
    assert redis.ttl(KEYS.session("s")) > 500, "also when it was mine before"


def test_a_job_dropped_by_a_living_worker_goes_back_and_is_taken_again(redis: Redis) -> None:
    """Whatever made the session another's, Redis has the last word on whose the job is."""
    a = Side(redis, "a")
    enqueue(redis, "s", "j0")
    worker = SimpleNamespace(
        _dequeue_strategy=DequeueStrategy.DEFAULT, _ordered_queues=[queue(redis)], log=logging.getLogger("t"),
        name="a", log_job_description=False, queues=[queue(redis)],
    )  # fmt: skip
    active = ActiveJobs()
    intake = Intake(worker, a.source, active, Contact())  # type: ignore[arg-type]
    (first,) = intake.claim(5)
    assert intake.claim(5) == []
    RedisOutcomes.drop(SimpleNamespace(_active=active), first)  # type: ignore[arg-type]
    (again,) = intake.claim(5)
    assert (again.id, again.deaths) == ("j0", 0)
    assert again.execution.id != first.execution.id
