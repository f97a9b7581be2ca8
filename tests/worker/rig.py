"""A cycle without RQ: jobs are handed to it directly, and what it reports about them is recorded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from rq.executions import Execution
from rq.job import Job

from tokenloom.native_ext.engine import Engine
from tokenloom.schemas.base import Versioned
from tokenloom.schemas.codec import decode
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.events import EVENT
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.log import unpack
from tokenloom.schemas.requests import Request
from tokenloom.schemas.serializer import MsgpackSerializer
from tokenloom.worker.cycle import Cycle
from tokenloom.worker.jobs.claimed import Claimed, Interruption
from tokenloom.worker.settings import WorkerSettings
from tokenloom.worker.store import Store
from tokenloom.worker.texts import Texts


@dataclass
class Recorded:
    """The Outcomes of a cycle, kept by job id."""

    results: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, TokenloomError] = field(default_factory=dict)
    interruptions: dict[str, Interruption | None] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    finished_claims: list[Claimed] = field(default_factory=list)

    def finish(self, claimed: Claimed, result: Versioned) -> None:
        assert claimed.id not in self.results, f"{claimed.id} finished twice"
        self.results[claimed.id] = result
        self.finished_claims.append(claimed)
        self.order.append(claimed.id)

    def fail(self, claimed: Claimed, error: TokenloomError, interruption: Interruption | None = None) -> None:
        self.errors[claimed.id] = error
        self.interruptions[claimed.id] = interruption
        self.order.append(claimed.id)

    def drop(self, claimed: Claimed) -> None:
        self.dropped.append(claimed.id)


class Rig:
    """One worker's cycle over a real server. ``owner`` plays the part of the claim script."""

    ids = itertools.count()

    def __init__(
        self, redis: Redis, engine: Engine, *, worker: str = "W", incarnation: str = "1", **settings: Any
    ) -> None:
        self.redis = redis
        self.engine = engine
        self.keys = Keys()
        self.settings = WorkerSettings(model=None, engine="fake", **settings)
        self.outcomes = Recorded()
        self.owner = f"{worker}#{incarnation}"
        redis.hset(self.keys.worker(worker), "incarnation", incarnation)
        store = Store(redis, self.keys, self.owner, self.settings)
        self.cycle = Cycle(engine, texts_of(engine), store, self.outcomes, self.settings, worker)

    def own(self, session: str) -> int:
        """Make this worker the session's owner, as the claim script does; its epoch."""
        key = self.keys.session(session)
        owner, epoch = self.redis.hmget(key, "owner", "epoch")
        if owner == self.owner.encode():
            return int(epoch or 0)
        self.redis.hset(key, "owner", self.owner)
        return int(self.redis.hincrby(key, "epoch", 1))

    def claim(self, request: Request, job: str | None = None, **fields: Any) -> Claimed:
        """A claimed job for this request."""
        job = job or f"job-{next(self.ids)}"
        kwargs = request.model_dump(exclude_none=True)
        made = Job.create(request.function, kwargs=kwargs, id=job, connection=self.redis, serializer=MsgpackSerializer)
        epochs = {name: self.own(name) for name in request.sessions}
        return Claimed(made, Execution("e-" + job, job, self.redis), request.session, request, epochs=epochs, **fields)

    def take(self, *requests: Request | Claimed) -> list[str]:
        """Hand jobs to the cycle; their ids."""
        claimed = [r if isinstance(r, Claimed) else self.claim(r) for r in requests]
        self.cycle.take(claimed)
        return [job.id for job in claimed]

    def run(self, *requests: Request | Claimed, turns: int = 2000) -> list[Any]:
        """Hand jobs over and turn until nothing is left to do; results or errors, in order."""
        ids = self.take(*requests)
        self.turn(turns)
        return [self.outcome(job) for job in ids]

    def turn(self, most: int = 2000) -> None:
        """Turn until there is nothing to do."""
        for _ in range(most):
            if not self.cycle.turn():
                return
        raise AssertionError(f"still busy after {most} turns")

    def outcome(self, job: str) -> Any:
        """A job's result, or its error."""
        if job in self.outcomes.results:
            return self.outcomes.results[job]
        return self.outcomes.errors[job]

    # -- what a reader sees ------------------------------------------------------------------------------------------

    def log(self, session: str) -> list[int]:
        return unpack(self.redis.get(self.keys.log(session)) or b"")

    def events(self, session: str) -> list[Any]:
        entries: Any = self.redis.xrange(self.keys.events(session))
        return [EVENT.validate_python(decode(fields[b"e"])) for _, fields in entries]


_texts: dict[str, Texts] = {}


def texts_of(engine: Engine) -> Texts:
    """The engine's text, built once a model."""
    return _texts.setdefault(
        engine.geometry.fingerprint, _texts.get(engine.geometry.fingerprint) or Texts(engine.metadata)
    )


def joined(events: Sequence[Any], inherited: Sequence[int] = ()) -> list[int]:
    """The log that a reader of the events would put together; fails on a gap, an overlap or a bad length.

    A clone's first tokens are ``inherited``. Of a session that was opened more than once, its last life counts.
    """
    log: list[int] = []
    births = [index for index, event in enumerate(events) if event.type == "opened"]
    events = events[births[-1] :] if births else events
    for event in events:
        if event.type == "opened":
            log = list(inherited[: event.length])
            assert len(log) == event.length
        elif event.type in ("appended", "tokens"):
            assert event.position == len(log), f"event at {event.position}, log has {len(log)}"
            log.extend(event.tokens)
        elif event.type == "rewound":
            assert event.length <= len(log)
            del log[event.length :]
        elif event.type == "finished":
            assert event.length == len(log)
    return log
