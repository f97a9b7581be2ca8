"""Opening, cloning, rewinding, closing: waited for by default, refused by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tokenloom.producer import Client, NoSuchSession, NoSuchStep, Pending, SessionExists, StepFailed, Unsupported
from tokenloom.schemas import (
    ClonedEvent,
    CloneResult,
    ClosedEvent,
    CloseResult,
    ErrorBody,
    ErrorEvent,
    JobRecord,
    OpenedEvent,
    OpenResult,
    RewindResult,
    RewoundEvent,
    StepRecord,
)
from tokenloom.schemas.log import pack

Start = Callable[..., None]
OPENED = OpenResult(session="a", seed=3, length=0, created=True)


def test_open_returns_the_session_once_it_is_there(client: Client, worker: Any, background: Start) -> None:
    def work() -> None:
        job = worker.claim()
        worker.record("a", job.id, JobRecord(operation="open", result=OPENED))
        worker.emit("a", job.id, OpenedEvent, seed=3)

    background(work)
    session = client.open("a", seed=3, defaults={"top_k": 5}, timeout=5)
    assert session.id == "a"
    assert session.opened == OPENED


def test_open_without_an_event_returns_as_well(client: Client, worker: Any, background: Start) -> None:
    """With exist_ok nothing changes, so nothing is published."""
    there = OpenResult(session="a", seed=3, length=9, created=False)
    background(lambda: worker.succeed(worker.claim(), there))
    assert client.open("a", exist_ok=True, timeout=5).opened == there


def test_open_without_an_id_makes_one_up(client: Client) -> None:
    first, second = client.open(wait=False), client.open(wait=False)
    names = {first.job.kwargs["session"], second.job.kwargs["session"]}
    assert len(names) == 2


def test_the_refusal_is_raised_by_its_class(client: Client, worker: Any, background: Start) -> None:
    def refuse(session: str, code: Any) -> None:
        job = worker.claim()
        error = ErrorBody(code=code, message=f"{session} says no")
        worker.record(session, job.id, JobRecord(operation=job.func_name.rsplit(".")[-1], error=error))
        worker.emit(session, job.id, ErrorEvent, error=error)
        worker.fail(job, f"tokenloom.schemas.errors.TokenloomError: [{code}] {session} says no")

    for code, cls, call in (
        ("session_exists", SessionExists, lambda: client.open("a", timeout=5)),
        ("no_such_session", NoSuchSession, lambda: client.session("a").rewind(3, timeout=5)),
        ("session_closed", NoSuchSession, lambda: client.session("a").clone(timeout=5)),
        ("unsupported", Unsupported, lambda: client.session("a").clone(timeout=5)),
    ):
        background(refuse, "a", code)
        with pytest.raises(cls, match="a says no") as caught:
            call()
        assert not isinstance(caught.value, StepFailed)


def test_clone_rewind_and_close_return_what_was_done(client: Client, worker: Any, background: Start) -> None:
    session = client.session("a")

    def work() -> None:
        clone = worker.claim()
        targets = clone.kwargs["targets"]
        result = CloneResult(session="a", targets=targets, seeds=[1, 2], length=4)
        worker.record("a", clone.id, JobRecord(operation="clone", result=result))
        worker.emit("a", clone.id, ClonedEvent, targets=targets, length=4)
        rewind = worker.claim()
        worker.emit("a", rewind.id, RewoundEvent, length=2)
        worker.succeed(rewind, RewindResult(session="a", length=2))
        close = worker.claim()
        worker.emit("a", close.id, ClosedEvent)
        worker.record("a", close.id, JobRecord(operation="close", result=CloseResult(session="a", closed=True)))

    background(work)
    assert [copy.id for copy in session.clone(targets=["b", "c"], upto=4, timeout=5)] == ["b", "c"]
    assert session.rewind(2, timeout=5).length == 2
    assert session.close(timeout=5).closed is True


def test_a_job_may_be_left_pending(client: Client, worker: Any) -> None:
    pending = client.session("a").rewind(2, wait=False)
    assert isinstance(pending, Pending)
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.1)
    worker.succeed(pending.id, RewindResult(session="a", length=2))
    assert pending.result(timeout=5).length == 2


def test_a_deleted_job_is_not_waited_for(client: Client) -> None:
    pending = client.session("a").rewind(2, wait=False)
    pending.job.delete()
    with pytest.raises(NoSuchStep):
        pending.result(timeout=10)


def test_the_log_and_its_length_can_be_read(client: Client, worker: Any, redis: Redis) -> None:
    session = client.session("a")
    assert session.length() is None
    assert session.tokens() == []
    redis.set(worker.keys.log("a"), pack([1, 2], generated=False) + pack([3], generated=True))
    redis.hset(worker.keys.session("a"), "length", 3)
    assert session.tokens() == [1, 2, 3]
    assert session.length() == 3


def test_a_record_of_another_kind_is_not_mistaken(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.record("a", step.id, StepRecord(base=0, appended=0, began=1.0))
    with pytest.raises(TimeoutError):
        step.result(timeout=0.2)


def test_sessions_are_listed_by_last_use(client: Client, worker: Any, redis: Redis) -> None:
    assert client.sessions() == []
    for used, name in enumerate(["a", "b", "c"]):
        redis.zadd(worker.keys.sessions, {name: 1000 + used})
    redis.hset(
        worker.keys.session("b"),
        mapping={"length": 7, "state": "open", "owner": "w1#abc", "created": 900.5, "parent": "a"},
    )
    listed = client.sessions(2)
    assert [info.id for info in listed] == ["c", "b"]
    b = listed[1]
    assert (b.length, b.state, b.owner, b.created, b.parent, b.used) == (7, "open", "w1", 900.5, "a", 1001.0)
    assert (listed[0].length, listed[0].state, listed[0].owner) == (0, "gone", None)
