"""One server, one worker, one well-behaved stream, and hostile jobs thrown in between."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import msgpack
from redis import Redis
from rq.job import Job

from tokenloom.schemas import MsgpackSerializer
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.log import unpack
from tokenloom.schemas.validate import decode_event
from worker_process import WorkerProcess

KEYS = Keys()
JOBS = "tokenloom.schemas.jobs."
#: Whose log has four tokens, and must have the same four ever after.
TARGET = "target"
#: Who has been opened and has an empty log.
EMPTY = "empty"
#: Who is not there.
NOBODY = "nobody"

#: What a worker and RQ keep whoever enqueues what.
_LASTING = re.compile(
    r"rq:(queues|workers.*|worker:.*|queue:steps|(wip|failed|finished|canceled|deferred|scheduled):steps"
    r"|clean_.*|executions:.*|execution:.*|maintenance.*)"
    r"|tokenloom:(workers|sessions|worker:.*)|.*bystander.*"
)


@dataclass(frozen=True)
class Attack:
    """A job as raw bytes, further fields of its hash, and the one error it must end with.

    ``session``: on whose channel the error must show, None where none can be read.
    """

    error: str
    data: bytes
    fields: Mapping[str, str | bytes] = field(default_factory=dict)
    session: str | None = TARGET


def payload(function: Any, kwargs: Any) -> bytes:
    """A job's data."""
    data: bytes = msgpack.packb([function, None, [], kwargs])
    return data


def bystanders_rounds(number: int) -> list[tuple[str, bytes]]:
    """Jobs of one round, by id: back to the beginning, and the same step again."""
    step = {
        "session": "bystander",
        "text": "once more",
        "generation": {"max_tokens": 8, "ignore_eos": True, "temperature": 1.2},
    }
    return [
        (f"bystander-{number}-rewind", payload(JOBS + "rewind", {"session": "bystander", "to": 0})),
        (f"bystander-{number}-step", payload(JOBS + "step", step)),
    ]


class Bystander(threading.Thread):
    """Runs the same step over and over. A session's tokens hang on its seed and its log alone: they never change."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(name="bystander", daemon=True)
        self.redis = redis
        self.rounds = 0
        self.longest = 0.0
        self.error: BaseException | None = None
        self.tokens = self._round()
        self._ending = False

    def run(self) -> None:
        try:
            while not self._ending:
                began = time.monotonic()
                tokens = self._round()
                self.longest = max(self.longest, time.monotonic() - began)
                assert tokens == self.tokens, f"round {self.rounds} generated {tokens}, alone {self.tokens}"
        except BaseException as error:
            self.error = error

    def next_round(self, timeout: float = 30.0) -> None:
        """Return once a round that began after now has ended as it should."""
        wanted = self.rounds + 2
        deadline = time.monotonic() + timeout
        while self.rounds < wanted:
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, "the stream beside has stopped"
            time.sleep(0.002)

    def end(self) -> None:
        self._ending = True
        self.join(30)
        if self.error is not None:
            raise self.error

    def _round(self) -> list[int]:
        at = self.redis.xrevrange(KEYS.events("bystander"), count=1)
        last: Any = at[0][0] if at else "0-0"
        for id, data in bystanders_rounds(self.rounds):
            enqueue(self.redis, id, data, {"result_ttl": "1"})
        tokens: list[int] = []
        until = time.monotonic() + 30
        while time.monotonic() < until:
            answer: Any = self.redis.xread({KEYS.events("bystander"): last}, block=1000)
            for _, entries in answer or []:
                for entry, fields in entries:
                    last = entry
                    event = decode_event(fields[b"e"])
                    if event.job != f"bystander-{self.rounds}-step":
                        continue
                    if event.type == "tokens":
                        tokens += event.tokens
                    elif event.type == "finished":
                        assert event.reason == "length", event
                        self.rounds += 1
                        return tokens
        raise AssertionError(f"round {self.rounds} did not end within 30 s; tokens: {tokens}")


def enqueue(redis: Redis, id: str | bytes, data: bytes, fields: Mapping[str, str | bytes] | None = None) -> None:
    """What a producer in any language sends."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    name = id.encode("utf-8", "surrogateescape") if isinstance(id, str) else id
    given: dict[Any, Any] = {"data": data, "origin": "steps", "status": "queued", "created_at": now, "enqueued_at": now}
    with redis.pipeline() as pipe:
        pipe.sadd("rq:queues", "rq:queue:steps")
        pipe.hset(b"rq:job:" + name, mapping=given | dict(fields or {}))
        pipe.rpush("rq:queue:steps", name)
        pipe.execute()


class Arena:
    """What a test needs: throw an attack, see how it ended, and see that nothing else happened."""

    def __init__(self, redis: Redis, worker: WorkerProcess) -> None:
        self.redis = redis
        self.worker = worker
        self.pid = worker.pid
        self.run("open-bystander", payload(JOBS + "open", {"session": "bystander", "seed": 7}))
        self.run("open-target", payload(JOBS + "open", {"session": TARGET, "seed": 1}))
        self.run("open-empty", payload(JOBS + "open", {"session": EMPTY, "seed": 1}))
        step = {"session": TARGET, "tokens": [97, 98], "generation": {"max_tokens": 2, "ignore_eos": True}}
        self.run("fill-target", payload(JOBS + "step", step))
        self.log = self.log_of(TARGET)
        assert len(self.log) == 4
        self.bystander = Bystander(redis)
        self.bystander.start()

    def run(self, id: str, data: bytes) -> None:
        """A job that must succeed."""
        enqueue(self.redis, id, data)
        assert self.ended(id) == "finished", self.error_of(id)
        self.job(id).delete()

    def ended(self, id: str, timeout: float = 30.0) -> str:
        """The status a job ended with."""
        deadline = time.monotonic() + timeout
        while True:
            status: Any = self.redis.hget(f"rq:job:{id}", "status")
            if status in (b"failed", b"finished", b"stopped", b"canceled"):
                return str(status.decode())
            assert time.monotonic() < deadline, f"{id} is {status} after {timeout} s:\n{self.worker.output()[-3000:]}"
            time.sleep(0.003)

    def job(self, id: str) -> Job:
        return Job(id, connection=self.redis, serializer=MsgpackSerializer)

    def error_of(self, id: str) -> str:
        """The error in RQ's failed job, without the class before it."""
        result = self.job(id).latest_result()
        assert result is not None, f"{id} has no result"
        text = str(result.exc_string).strip()
        return text[text.rindex("tokenloom.schemas.errors.") :].partition(": ")[2]

    def channel_error(self, session: str, id: str) -> str:
        """The error that the session's channel tells of the job, which must be the only thing it tells of it."""
        entries: Any = self.redis.xrange(KEYS.events(session))
        events = [event for _, fields in entries if (event := decode_event(fields[b"e"])).job == id]
        assert len(events) == 1, f"{len(events)} events of {id}"
        (event,) = events
        assert event.type in ("finished", "error")
        error = getattr(event, "error", None)
        assert error is not None
        return f"[{error.code}] {error.message}"

    def log_of(self, session: str) -> list[int]:
        data: Any = self.redis.get(KEYS.log(session))
        return unpack(data or b"")

    def keys(self) -> set[str]:
        """Every key but those that are always there, and the stream's beside."""
        names = {key.decode("utf-8", "backslashreplace") for key in self.redis.scan_iter(count=1000)}
        return {name for name in names if not _LASTING.fullmatch(name)}

    def claimed(self) -> set[str]:
        """The hashes of sessions that jobs of these tests name and nobody opened."""
        return {key for key in self.keys() if re.fullmatch(r"tokenloom:\{(c|s)\d+\}:session", key)}

    def records(self) -> list[dict[str, Any]]:
        """What the worker has logged."""
        return [json.loads(line) for line in self.worker.output().splitlines()]

    def settled(self, expected: set[str], timeout: float = 5.0) -> None:
        """Return once there are these keys and no others."""
        deadline = time.monotonic() + timeout
        while (keys := self.keys()) != expected:
            assert time.monotonic() < deadline, f"too many: {keys - expected}, missing: {expected - keys}"
            time.sleep(0.005)

    def alive(self) -> None:
        """The worker is the one that was started, and it never lost its lease."""
        assert self.worker.process is not None
        assert self.worker.process.poll() is None, self.worker.output()[-3000:]
        assert self.worker.pid == self.pid
