"""Connections of the worker's own: the same Redis, short waits, nothing repeated in secret."""

from __future__ import annotations

import redis as redis_py
from redis import Redis
from redis.sentinel import Sentinel, SentinelConnectionPool

from tokenloom.worker.jobs.links import ANSWER_WITHIN, private_link


def test_a_private_link_reaches_the_same_server(redis: Redis) -> None:
    redis.set("here", 1)
    link = private_link(redis)
    assert link.get("here") == b"1"
    assert link.connection_pool is not redis.connection_pool


def test_options_of_the_connection_are_kept_and_waits_are_short() -> None:
    given = Redis.from_url("rediss://user:secret@host:7000/3?ssl_cert_reqs=none", socket_timeout=415)
    pool = private_link(given).connection_pool
    assert pool.connection_class is redis_py.SSLConnection
    kept = pool.connection_kwargs
    assert (kept["host"], kept["port"], kept["db"]) == ("host", 7000, 3)
    assert (kept["username"], kept["password"], kept["ssl_cert_reqs"]) == ("user", "secret", "none")
    assert kept["socket_timeout"] == ANSWER_WITHIN
    assert kept["retry"].get_retries() == 0


def test_a_sentinel_master_stays_behind_its_sentinels() -> None:
    sentinels = Sentinel([("localhost", 1)])  # type: ignore[no-untyped-call]
    master = sentinels.master_for("mymaster", password="secret")  # type: ignore[no-untyped-call]
    pool = private_link(master).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert (pool.service_name, pool.is_master) == ("mymaster", True)
    assert pool.connection_kwargs["password"] == "secret"
    assert pool.connection_kwargs["socket_timeout"] == ANSWER_WITHIN
