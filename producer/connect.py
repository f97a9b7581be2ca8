"""Finding Redis, and saying so clearly when it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.exceptions

from .errors import RedisUnavailable

DEFAULT_URL = "redis://localhost:6379/0"

#: Where to look, in this order: first where RQ's own worker command does, so that both find the same server.
URL_VARIABLES = ("RQ_REDIS_URL", "REDIS_URL")

#: What a lost connection raises.
TROUBLE = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)


def default_url() -> str:
    """``RQ_REDIS_URL``, as RQ's own command has it, or ``REDIS_URL``, or the local server."""
    return next((url for name in URL_VARIABLES if (url := os.environ.get(name))), DEFAULT_URL)


def connect(where: redis.Redis | str | None) -> redis.Redis:
    """A connection pool for ``where``: a URL, a ``redis.Redis`` (used as it is), or None for ``default_url()``.

    Raises ValueError for a URL redis-py does not understand or a client that decodes responses, which msgpack is not
    for.
    """
    if where is None or isinstance(where, str):
        url = where or default_url()
        try:
            return redis.Redis.from_url(url)
        except ValueError as error:
            raise ValueError(f"{url!r} is not a Redis URL: {error}") from None
    refuse_decoding(where)
    return where


def refuse_decoding(connection: Any) -> None:
    """Raises ValueError for a client made with ``decode_responses=True``."""
    if connection.connection_pool.connection_kwargs.get("decode_responses"):
        raise ValueError("decode_responses=True cannot be used here: jobs and events are msgpack, not text")


def describe(connection: Any) -> str:
    """The address as a URL, without user and password."""
    options = connection.connection_pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}"
    scheme = "rediss" if "ssl" in connection.connection_pool.connection_class.__name__.lower() else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


def unavailable(where: str, error: BaseException, waited: float = 0.0) -> RedisUnavailable:
    """The error for a Redis that does not answer, with what to do."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return RedisUnavailable(f"Redis at {where} refused the login ({error}): check user and password in the URL")
    how_long = f" for {waited:.0f} s" if waited else ""
    return RedisUnavailable(
        f"no Redis at {where}{how_long} ({error}): start one, for example with `valkey-server`, "
        f"or name another by the client's url or the variable {URL_VARIABLES[0]}"
    )


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Turns connection trouble inside into RedisUnavailable."""
    try:
        yield
    except RedisUnavailable:
        raise
    except TROUBLE as error:
        raise unavailable(where, error) from error
