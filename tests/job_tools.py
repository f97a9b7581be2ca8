"""Jobs as any producer writes them, and the queue side of a worker without the worker around it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgpack
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.utils import as_text

from tokenloom.schemas import Keys, MsgpackSerializer
from tokenloom.worker.jobs.claimed import Claimed
from tokenloom.worker.jobs.guarded import guarded
from tokenloom.worker.jobs.lease import Lease
from tokenloom.worker.jobs.source import Claim, JobSource

STEP = "tokenloom.schemas.jobs.step"
KEYS = Keys()


def queue(redis: Redis, name: str = "steps") -> Queue:
    """A queue as the producer makes it."""
    return Queue(name, connection=redis, serializer=MsgpackSerializer)


def enqueue(
    redis: Redis,
    session: str | None,
    id: str,
    *,
    function: str = STEP,
    queue_name: str = "steps",
    named: bool = True,
    others: Sequence[str] = (),
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Job:
    """A step for a session, which its meta names, with ``others``, if ``named``. ``kwargs``: more of the request."""
    fields = {"session": session, **(kwargs or {})} if session is not None else (kwargs or {})
    if named and session is not None:
        options["meta"] = {"sessions": [session, *others], **options.get("meta", {})}
    return queue(redis, queue_name).enqueue(function, kwargs=fields, job_id=id, **options)


def raw_job(redis: Redis, id: str, data: bytes | Any, *, queue_name: str = "steps", **fields: Any) -> None:
    """A job hash with exactly these fields, and its id in the queue. ``data`` that is not bytes becomes msgpack."""
    packed = data if isinstance(data, bytes) else msgpack.packb(data)
    given: dict[Any, Any] = {
        "data": packed,
        "origin": queue_name,
        "status": "queued",
        "created_at": "2026-01-01T00:00:00.000000Z",
    }
    redis.hset(f"rq:job:{id}", mapping=given | fields)
    redis.rpush(f"rq:queue:{queue_name}", id)


def bomb(size: int) -> bytes:
    """Compressed zeros."""
    return zlib.compress(b"\0" * size)


class Side:
    """The lease and the source of one worker."""

    def __init__(
        self,
        redis: Redis,
        name: str,
        *,
        lease: float = 60.0,
        queues: Sequence[str] = ("steps",),
        callbacks: Sequence[str] = (),
    ) -> None:
        self.redis = redis
        self.name = name
        self.lease = Lease(redis, KEYS, name, lease)
        self.back = self.lease.take()
        redis.hset(f"rq:worker:{name}", "tokenloom", self.lease.incarnation)
        redis.sadd("rq:workers", f"rq:worker:{name}")
        job_class = guarded(Job, frozenset(callbacks))
        self.source = JobSource(redis, KEYS, name, self.lease.incarnation, job_class, redis)
        self.queues = [queue(redis, each) for each in queues]

    @property
    def owner(self) -> str:
        return f"{self.name}#{self.lease.incarnation}"

    def claim(self, most: int = 100, **options: Any) -> Claim:
        return self.source.claim(most, self.queues, **options)

    def take(self, most: int = 100, **options: Any) -> list[str]:
        """Ids of what one claim brought."""
        return [claimed.id for claimed in self.claim(most, **options).jobs]

    def take_one(self) -> Claimed:
        (claimed,) = self.claim(1).jobs
        return claimed

    def die(self) -> None:
        """The lease lapses."""
        self.redis.delete(KEYS.worker(self.name))


def field(redis: Redis, key: str, name: str) -> str | None:
    """A field of a hash as text."""
    value = redis.hget(key, name)
    return None if value is None else as_text(value)


def status(redis: Redis, id: str) -> str | None:
    """A job's status as Redis has it."""
    return field(redis, f"rq:job:{id}", "status")


def owner_of(redis: Redis, session: str) -> str | None:
    return field(redis, KEYS.session(session), "owner")


def epoch_of(redis: Redis, session: str) -> int:
    return int(redis.hget(KEYS.session(session), "epoch") or 0)


def ids(redis: Redis, key: str = "rq:queue:steps") -> list[str]:
    """A list of ids, in order."""
    return [as_text(id) for id in redis.lrange(key, 0, -1)]


def reap(side: Side) -> dict[str, int]:
    """What one look for dead workers did: name -> jobs put back."""
    from tokenloom.worker.jobs.scripts import Scripts

    answer = Scripts(side.redis, KEYS)("reap", [side.name])
    return {name.decode(): int(back) for name, back in zip(answer[::2], answer[1::2], strict=True)}
