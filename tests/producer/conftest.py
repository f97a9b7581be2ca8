"""A worker played by hand: it writes to Redis what the real one would, when the test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job, JobStatus
from rq.results import Result

from tokenloom.producer import Client
from tokenloom.schemas import (
    AppendedEvent,
    FinishedEvent,
    Keys,
    MsgpackSerializer,
    StepRecord,
    StepResult,
    TokensEvent,
    Usage,
    Versioned,
    encode,
)


class ActingWorker:
    """``step`` does a whole step; the other methods are its parts."""

    def __init__(self, connection: Redis) -> None:
        self.redis = connection
        self.keys = Keys()
        self.queue = Queue("steps", connection=connection, serializer=MsgpackSerializer)

    def alive(self, name: str = "w1") -> None:
        self.redis.sadd(self.keys.workers, name)
        self.redis.hset(self.keys.worker(name), "incarnation", "1")
        self.redis.sadd("rq:workers:steps", f"rq:worker:{name}")

    def claim(self, timeout: float = 5.0) -> Job:
        """The next job of the queue, started."""
        until = time.monotonic() + timeout
        while (id := self.redis.lpop(self.queue.key)) is None:
            assert time.monotonic() < until, "no job came"
            time.sleep(0.005)
        job = Job.fetch(id.decode(), connection=self.redis, serializer=MsgpackSerializer)
        job.set_status(JobStatus.STARTED)
        return job

    def emit(self, session: str, job: str, model: type[Any], **fields: Any) -> str:
        event = model(session=session, job=job, at=time.time(), **fields)
        return self.redis.xadd(self.keys.events(session), {b"e": encode(event)}).decode()

    def record(self, session: str, job: str, record: Versioned) -> None:
        self.redis.hset(self.keys.steps(session), job, encode(record))

    def succeed(self, job: Job | str, result: Versioned | None) -> None:
        job = self._fetch(job)
        job.set_status(JobStatus.FINISHED)
        Result.create(job, Result.Type.SUCCESSFUL, ttl=job.result_ttl, return_value=result)

    def fail(self, job: Job | str, text: str) -> None:
        job = self._fetch(job)
        job.set_status(JobStatus.FAILED)
        Result.create_failure(job, ttl=60, exc_string=text)

    def step(self, session: str, id: str, pieces: list[str], *, base: int = 0, pause: float = 0.0) -> StepResult:
        """Appends one token, generates one a piece, the last piece held back until ``finished``."""
        self.emit(session, id, AppendedEvent, position=base, tokens=[7])
        tokens = [100 + n for n in range(len(pieces))]
        for n, token in enumerate(tokens):
            time.sleep(pause)
            text = pieces[n] if n < len(pieces) - 1 else ""
            self.emit(session, id, TokensEvent, position=base + 1 + n, tokens=[token], text=text)
        result = StepResult(
            session=session,
            step=id,
            reason="stop",
            tokens=tokens,
            text="".join(pieces),
            length=base + 1 + len(tokens),
            usage=Usage(appended=1, generated=len(tokens)),
        )
        self.emit(session, id, FinishedEvent, reason="stop", length=result.length, text=pieces[-1], usage=result.usage)
        return result

    def remember(self, result: StepResult) -> None:
        record = StepRecord(base=0, appended=1, began=1.0, ended=2.0, reason=result.reason, result=result)
        self.record(result.session, result.step, record)

    def _fetch(self, job: Job | str) -> Job:
        if isinstance(job, Job):
            return job
        return Job.fetch(job, connection=self.redis, serializer=MsgpackSerializer)


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


@pytest.fixture
def worker(redis: Redis) -> ActingWorker:
    return ActingWorker(redis)


@pytest.fixture
def acting_worker() -> type[ActingWorker]:
    """For a server of the test's own."""
    return ActingWorker


@pytest.fixture
def background() -> Iterator[Callable[..., None]]:
    """Runs functions beside the test; what they raise fails it."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(function: Callable[..., object], *arguments: object) -> None:
        def body() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=body, daemon=True))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
