"""What a reader of Redis sees of sessions and workers, and what must hold of it whatever happened in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from redis import Redis

from tokenloom.producer import Client, Event, Step
from tokenloom.schemas import AppendedEvent, FinishedEvent, Keys, OpenedEvent, RewoundEvent, TokensEvent
from tokenloom.schemas.log import unpack
from tokenloom.schemas.validate import decode_event

T = TypeVar("T")

#: Settings of a worker whose death is noticed quickly.
QUICK = {"heartbeat": 0.2, "lease": 1.0}


def wait_until(found: Callable[[], T | None], timeout: float = 20.0, what: str = "") -> T:
    """What ``found`` returns as soon as that is true; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or found}"
        time.sleep(0.01)


def log_of(redis: Redis, session: str) -> list[int]:
    """The session's log."""
    data: Any = redis.get(Keys().log(session))
    return unpack(data or b"")


def events_of(redis: Redis, session: str) -> list[Event]:
    """Every event in the session's stream, in its order."""
    entries: Any = redis.xrange(Keys().events(session))
    return [decode_event(fields[b"e"], id=id.decode()) for id, fields in entries]


def tokens_of(events: Iterable[Event], step: str | None = None) -> list[int]:
    """The tokens that the events, or those of one step, say were generated."""
    return [
        token
        for event in events
        if isinstance(event, TokensEvent) and step in (None, event.job)
        for token in event.tokens
    ]


def check_stream(redis: Redis, session: str) -> list[Event]:
    """The session's events, after checking that they tell its log: every token once, in order, without a gap."""
    events = events_of(redis, session)
    log: list[int] = []
    finished: set[str] = set()
    for event in events:
        if isinstance(event, OpenedEvent):
            log = log_of(redis, session)[: event.length]
        elif isinstance(event, (AppendedEvent, TokensEvent)):
            assert event.job not in finished, f"{session}: {event.job} goes on after its end"
            assert event.position == len(log), f"{session}: {event.type} at {event.position} after {len(log)} tokens"
            log += event.tokens
        elif isinstance(event, RewoundEvent):
            del log[event.length :]
        elif isinstance(event, FinishedEvent):
            assert event.job not in finished, f"{session}: {event.job} finishes twice"
            assert event.length == len(log), f"{session}: finished at {event.length} with {len(log)} tokens"
            finished.add(event.job)
    assert log == log_of(redis, session)
    return events


def stats_of(redis: Redis, worker: str) -> dict[str, float]:
    """The numbers in a worker's hash."""
    fields: Any = redis.hgetall(Keys().worker(worker))
    numbers = {}
    for name, value in fields.items():
        try:
            numbers[name.decode()] = float(value)
        except ValueError:
            continue
    return numbers


def final_stats(client: Client, worker: str) -> dict[str, float]:
    """The worker's numbers, taken after everything it had to do before this call."""
    redis = client.connection
    for _ in range(2):  # the figures are taken anew at most once in half a heartbeat, and only when something happens
        time.sleep(0.2)
        client.session("nobody").close()
    asked = time.time()

    def rested() -> dict[str, float] | None:
        stats = stats_of(redis, worker)
        return stats if stats.get("beat", 0.0) > asked + 0.3 and stats.get("active") == 0 else None

    return wait_until(rested, what=f"a heartbeat of {worker} at rest")


class Reader(threading.Thread):
    """Iterates over a step, as a service does, and keeps what came. ``wanted``: the tokens the step was asked for."""

    def __init__(self, step: Step, wanted: int = 0) -> None:
        super().__init__(name=f"reader of {step.id}", daemon=True)
        self.step = step
        self.wanted = wanted
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            for event in self.step.events(timeout=60):
                self.events.append(event)
        except Exception as error:  # told to the test by ``done``
            self.error = error

    @property
    def tokens(self) -> int:
        """How many tokens came so far."""
        return len(tokens_of(list(self.events)))

    def done(self, timeout: float = 60.0) -> list[Event]:
        """All events of the step, once it has ended; each came once and in order, and none is missing."""
        self.join(timeout)
        assert not self.is_alive(), f"{self.name} has waited {timeout} s; {self.tokens} tokens came"
        if self.error is not None:
            raise self.error
        ids = [_order(event.id) for event in self.events]
        assert ids == sorted(set(ids)), f"{self.name}: events doubled or out of order"
        assert isinstance(self.events[-1], FinishedEvent)
        end = self.events[-1]
        position = end.length - len(tokens_of(self.events))
        for event in self.events:
            if isinstance(event, TokensEvent):
                assert event.position == position
                position += len(event.tokens)
        assert position == end.length
        return self.events


def _order(id: str | None) -> tuple[int, int]:
    assert id is not None, "an event that was never in the stream"
    time_ms, _, sequence = id.partition("-")
    return int(time_ms), int(sequence)
