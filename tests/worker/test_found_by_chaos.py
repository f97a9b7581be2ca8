"""What the chaos run found, each in small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from rig import Rig, joined

from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest

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

    rig.cycle.store.write = expiring  # type: ignore[method-assign]
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


def test_a_closed_session_is_given_up_later_when_a_job_may_be_on_its_way(rig: Rig) -> None:
    rig.redis.rpush(rig.keys.worker_inbox("W"), "some-job")
    rig.run(OpenRequest(session="t"), CloseRequest(session="t"))
    assert rig.redis.hget(rig.keys.session("t"), "owner") == b"W#1"
    rig.redis.delete(rig.keys.worker_inbox("W"))
    rig.cycle.table.release_idle()
    assert rig.redis.hget(rig.keys.session("t"), "owner") is None
