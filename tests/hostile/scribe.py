"""Commits of one session, one token each, on a thread of their own; and what Redis must hold after any trouble."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgpack
from redis import Redis

from tokenloom.schemas import JobRecord, Keys, OpenedEvent, OpenResult, StepRecord, TokensEvent
from tokenloom.schemas.log import pack, unpack
from tokenloom.schemas.validate import decode_event
from tokenloom.worker.jobs.links import private_link
from tokenloom.worker.session import Session
from tokenloom.worker.settings import WorkerSettings
from tokenloom.worker.store import Store, Write

KEYS = Keys()
OWNER = "W#1"


def own(redis: Redis) -> None:
    """What the claim script does."""
    redis.hset(KEYS.session("s"), mapping={"owner": OWNER, "epoch": 1})


class Scribe(threading.Thread):
    """Opens the session and commits tokens 1, 2, 3, ... until ``end``."""

    def __init__(self, url: str) -> None:
        super().__init__(name="scribe", daemon=True)
        self.stopping = False
        settings = WorkerSettings(model=None, engine="fake")
        connection = private_link(Redis.from_url(url), answer_within=5.0)
        self.store = Store(connection, KEYS, OWNER, settings, lambda: self.stopping)
        self.session = Session("s", 1)
        self.count = 0
        self.statuses: list[str] = []
        self.error: BaseException | None = None
        self._ending = False

    def open(self) -> Scribe:
        """The first commit, made here and now."""
        result = OpenResult(session="s", seed=1, length=0, created=True)
        event = OpenedEvent(session="s", job="open", at=time.time(), seed=1)
        record = JobRecord(operation="open", result=result)
        fields: dict[str, Any] = {"state": "open", "model": "m", "seed": "1"}
        self._write(Write(self.session, "open", record, done=True, fields=fields, events=[event]))
        self.session.state = "open"
        return self

    def commit(self) -> None:
        """One more token."""
        token, length = self.count + 1, self.session.length
        event = TokensEvent(session="s", job="step", at=time.time(), position=length, tokens=[token], text="x")
        record = StepRecord(base=0, appended=0, generated=token, began=1.0)
        write = Write(self.session, "step", record, append=pack([token], generated=True), events=[event])
        self._write(write)
        self.session.log.frombytes(write.append)
        self.count = token

    def run(self) -> None:
        try:
            while not self._ending:
                self.commit()
                time.sleep(0.002)
        except BaseException as error:
            self.error = error

    def reach(self, count: int, timeout: float = 30.0) -> None:
        """Return once so many more tokens are committed."""
        wanted, until = self.count + count, time.monotonic() + timeout
        while self.count < wanted:
            if self.error is not None:
                raise self.error
            assert time.monotonic() < until, f"{self.count} commits, waiting for {wanted}"
            time.sleep(0.005)

    def stands_still(self) -> None:
        """Check that nothing is committed for a while."""
        time.sleep(0.3)
        before = self.count
        time.sleep(0.4)
        assert self.count == before
        assert self.error is None

    def end(self) -> int:
        """How many were committed in all."""
        self._ending = True
        self.join(30)
        if self.error is not None:
            raise self.error
        return self.count

    def _write(self, write: Write) -> None:
        (answer,) = self.store.write([write])
        assert answer.held, answer
        self.statuses.append(answer.status)


class Listener:
    """Everything published on the session's channel, read at the end."""

    def __init__(self, redis: Redis) -> None:
        self._channel: Any = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._channel.subscribe(KEYS.tokens("s"))
        self._channel.get_message(timeout=1)

    def ids(self) -> list[str]:
        ids = []
        while message := self._channel.get_message(timeout=0.2):
            unpacker = msgpack.Unpacker(raw=False)
            unpacker.feed(message["data"])
            ids.append(unpacker.unpack()[0])
        return ids


def check(redis: Redis, count: int) -> list[str]:
    """Redis holds tokens 1 to ``count``, each once, and told of each once; the ids of the events."""
    data: Any = redis.get(KEYS.log("s"))
    assert unpack(data) == list(range(1, count + 1))
    assert redis.hget(KEYS.session("s"), "length") == str(count).encode()
    entries: Any = redis.xrange(KEYS.events("s"))
    events = [decode_event(fields[b"e"]) for _, fields in entries]
    assert events[0].type == "opened"
    told = [(event.position, token) for event in events if isinstance(event, TokensEvent) for token in event.tokens]
    assert told == [(number, number + 1) for number in range(count)]
    assert len(events) == count + 1
    return [id.decode() for id, _ in entries]
