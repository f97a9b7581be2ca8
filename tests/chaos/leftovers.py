"""What a run leaves behind once every session is closed: nothing but what lives for a time that was set."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import redis as redis_py


def wait_quiet(redis: redis_py.Redis, seconds: float) -> None:
    """Return when RQ has no job waiting or at work, or after ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not redis.llen("rq:queue:steps") and not redis.zcard("rq:wip:steps"):
            return
        time.sleep(0.1)


def sessions_left(redis: redis_py.Redis, seconds: float, namespace: str = "tokenloom") -> list[str]:
    """Keys of sessions that are still there after ``seconds``, which is longer than closed ones are kept."""
    until = time.monotonic() + seconds
    while True:
        keys = sorted(key.decode() for key in redis.scan_iter(f"{namespace}:{{*", count=1000))
        if not keys or time.monotonic() > until:
            break
        time.sleep(0.5)
    return [f"key {key} is left behind (expires in {redis.ttl(key)} s)" for key in keys]


def while_workers_live(redis: redis_py.Redis, workers: Iterable[str], namespace: str = "tokenloom") -> Iterator[str]:
    """Violations among the workers' own keys and figures, and RQ's, while the workers are alive and idle."""
    prefix = f"{namespace}:worker:"
    alive = set(workers)
    for name in alive:
        fields: Any = redis.hgetall(prefix + name)
        for figure in ("pages_used", "resident", "running", "active"):
            value = fields.get(figure.encode(), b"missing").decode()
            if value != "0":
                yield f"worker {name} says {figure} is {value}; expected was 0"
    for key in sorted(key.decode() for key in redis.scan_iter(f"{prefix}*", count=1000)):
        name, _, rest = key[len(prefix) :].partition(":")
        kept_for_a_while = rest == "sequences" and name not in alive and redis.ttl(key) > 0
        if (rest or name not in alive) and not kept_for_a_while:
            yield f"key {key} is left behind"
    if redis.exists(f"{namespace}:sessions"):
        yield f"{namespace}:sessions lists {redis.zrange(f'{namespace}:sessions', 0, 5)}"
    yield from _rq(redis)


def after_workers_ended(redis: redis_py.Redis, namespace: str = "tokenloom") -> Iterator[str]:
    """Violations once every worker has shut down: nothing of ours is there."""
    for key in sorted(key.decode() for key in redis.scan_iter(f"{namespace}:*", count=1000)):
        if not key.endswith(":sequences") or redis.ttl(key) < 0:
            yield f"key {key} is left behind after the last worker has ended"
    for key in ("rq:workers", "rq:workers:steps"):
        if redis.exists(key):
            yield f"{key} still lists {redis.smembers(key)}"
    yield from _rq(redis)


def _rq(redis: redis_py.Redis) -> Iterator[str]:
    for kind, count in (("llen", "rq:queue:steps"), ("zcard", "rq:wip:steps"), ("zcard", "rq:deferred:steps")):
        left = getattr(redis, kind)(count)
        if left:
            yield f"{count} still has {left} entries"
    for key in sorted(key.decode() for key in redis.scan_iter("rq:execution*", count=1000)):
        yield f"key {key} is left behind"
    # a job that is over lives for a set time, and so must everything else of it
    for pattern in ("rq:job:*", "rq:results:*"):
        for key in redis.scan_iter(pattern, count=1000):
            if redis.ttl(key) < 0:
                yield f"key {key.decode()} never expires"
