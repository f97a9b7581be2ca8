"""Whole sessions, one or many, over one connection."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tokenloom.producer import Client, EventsLost, InvalidRequest
from tokenloom.schemas import ClosedEvent, ErrorBody, ErrorEvent, OpenedEvent, RewoundEvent

Start = Callable[..., None]


def test_a_session_is_read_from_its_beginning_until_it_is_closed(
    client: Client, worker: Any, background: Start
) -> None:
    worker.emit("a", "j1", OpenedEvent, seed=1)
    worker.step("a", "j2", ["A"])
    background(lambda: (time.sleep(0.2), worker.emit("a", "j3", ClosedEvent)))  # type: ignore[func-returns-value]
    events = list(client.session("a").events())
    assert [event.type for event in events] == ["opened", "appended", "tokens", "finished", "closed"]
    assert list(client.session("a").events(events[1].id)) == events[2:]


def test_a_session_opened_again_is_read_past_its_old_end(client: Client, worker: Any) -> None:
    for job in ("j1", "j2"):
        worker.emit("a", job, OpenedEvent, seed=1)
        worker.emit("a", job, ClosedEvent)
    assert [event.job for event in client.session("a").events()] == ["j1", "j1", "j2", "j2"]


def test_refusals_after_the_end_do_not_keep_the_reader(client: Client, worker: Any, redis: Redis) -> None:
    worker.emit("a", "j1", ClosedEvent)
    error = ErrorBody(code="session_closed", message="closed")
    last = worker.emit("a", "j2", ErrorEvent, error=error)
    assert [event.type for event in client.session("a").events()] == ["closed", "error"]
    redis.hset(worker.keys.session("a"), "state", "closed")
    assert list(client.session("a").events(last)) == []


def test_from_now_on_leaves_out_what_was(client: Client, worker: Any, background: Start) -> None:
    worker.emit("a", "old", OpenedEvent, seed=1)
    events = client.session("a").events("$")

    def work() -> None:
        for _ in range(20):
            time.sleep(0.05)
            worker.emit("a", "new", RewoundEvent, length=1)
        worker.emit("a", "new", ClosedEvent)

    background(work)
    assert {event.job for event in events} == {"new"}


def test_many_sessions_share_one_connection(client: Client, worker: Any, redis: Redis, background: Start) -> None:
    names = [f"s{n}" for n in range(200)]
    before = {row["id"] for row in redis.client_list()}
    follower = client.follow(names, from_id="0")
    for name in names:
        worker.step(name, f"j-{name}", ["A", "B"])
    events = list(itertools.islice(follower, 200 * 4))
    for name in names:
        own = [event for event in events if event.session == name]
        assert [event.type for event in own] == ["appended", "tokens", "tokens", "finished"]
    readers = [row for row in redis.client_list() if row["id"] not in before and row["cmd"] == "xread"]
    assert len(readers) == 1
    assert set(follower.positions) == set(names)


def test_sessions_join_and_leave_while_others_are_followed(client: Client, worker: Any) -> None:
    follower = client.follow(["a"], from_id="0")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(follower))
    thread.start()
    try:
        worker.emit("a", "j1", RewoundEvent, length=1)
        time.sleep(0.1)
        follower.add("b", "0")
        worker.emit("b", "j2", RewoundEvent, length=2)
        until = time.monotonic() + 3
        while len(got) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        follower.discard("a")
        time.sleep(0.6)
        worker.emit("a", "j3", RewoundEvent, length=3)
        worker.emit("b", "j4", RewoundEvent, length=4)
        time.sleep(0.7)
    finally:
        follower.close()
        thread.join(5)
    assert not thread.is_alive()
    assert [(event.session, event.length) for event in got] == [("a", 1), ("b", 2), ("b", 4)]


def test_a_follower_resumes_from_its_positions(client: Client, worker: Any) -> None:
    for n in range(3):
        worker.emit("a", f"j{n}", RewoundEvent, length=n)
        worker.emit("b", f"j{n}", RewoundEvent, length=n)
    first = client.follow(["a", "b"], from_id="0")
    seen = list(itertools.islice(first, 4))
    second = client.follow()
    for session, position in first.positions.items():
        second.add(session, position)
    seen += itertools.islice(second, 2)
    assert sorted((event.session, event.length) for event in seen) == [(s, n) for s in "ab" for n in range(3)]


def test_an_outage_loses_nothing_even_for_who_starts_now(
    valkey_server: Callable[..., Any], acting_worker: Any, background: Start
) -> None:
    server = valkey_server(appendfsync="always")
    client = Client(server.url)
    worker = acting_worker(server.client())
    worker.emit("a", "old", RewoundEvent, length=0)
    follower = client.follow(["a", "b"])

    def work() -> None:
        time.sleep(0.3)
        server.kill()
        time.sleep(0.2)
        server.start()
        for n in range(5):
            worker.emit("a", "j", RewoundEvent, length=n)

    background(work)
    assert [event.length for event in itertools.islice(follower, 5)] == list(range(5))


def test_a_place_that_was_trimmed_is_an_error_and_no_gap(client: Client, worker: Any, redis: Redis) -> None:
    ids = [worker.emit("a", "j", RewoundEvent, length=n) for n in range(10)]
    redis.xtrim(worker.keys.events("a"), maxlen=5, approximate=False)
    with pytest.raises(EventsLost, match=f"does not reach back to {ids[2]}"):
        next(client.session("a").events(ids[2]))
    assert next(client.session("a").events(ids[6])).length == 7
    assert next(client.session("a").events("0")).length == 5


def test_a_wrong_place_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="'newest' is not a stream id"):
        client.follow(["a"], from_id="newest")
