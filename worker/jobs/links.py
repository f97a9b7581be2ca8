"""Connections of the worker's own beside the one RQ gave it: each thread has one, and none waits for minutes."""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

from typing import Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool
from rq.connections import get_connection_kwargs

#: Seconds after which a command without an answer counts as a lost connection.
ANSWER_WITHIN = 10.0


def private_link(connection: Redis, answer_within: float = ANSWER_WITHIN) -> Redis:
    """A client for the same Redis with connections of its own.

    It never repeats a command by itself: whether a claim or a finished job may be sent again is for the caller to know.
    """
    pool = connection.connection_pool
    options: dict[str, Any] = {
        **get_connection_kwargs(connection),
        "socket_timeout": answer_within,
        "socket_connect_timeout": answer_within,
        "retry": Retry(NoBackoff(), 0),
    }
    if isinstance(pool, SentinelConnectionPool):
        options.pop("connection_pool", None)
        own: ConnectionPool = SentinelConnectionPool(
            pool.service_name,
            pool.sentinel_manager,
            is_master=pool.is_master,
            check_connection=pool.check_connection,
            connection_class=pool.connection_class,
            **options,
        )
    else:
        own = ConnectionPool(connection_class=pool.connection_class, **options)
    return Redis(connection_pool=own)
