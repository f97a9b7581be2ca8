"""A client and a worker of different namespaces, on one queue: the client hears of it, from the first call on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from e2e.seen import QUICK
from tokenloom.producer import Client, InvalidRequest, Pending, Session
from worker_process import WorkerProcess

NAMES = "namespace 'theirs', and this worker serves 'ours'"


def test_a_client_of_another_namespace_is_told_both_names(
    redis_url: str, redis: Redis, make_worker: Callable[..., WorkerProcess]
) -> None:
    make_worker(engine="fake", namespace="ours", **QUICK)
    with Client(redis_url, namespace="theirs") as client:
        with pytest.raises(InvalidRequest, match=NAMES):
            client.open("s", timeout=10)
        step = client.session("s").step("go", max_tokens=3)
        with pytest.raises(InvalidRequest, match=NAMES):
            step.result(10)
        last = list(step.events(timeout=10))[-1]
        assert last.type == "finished"
        assert last.error is not None
        assert NAMES in last.error.message
        pending: Pending[Session] = client.open("s", wait=False)
        with pytest.raises(InvalidRequest, match=NAMES):
            pending.result(10)
    with Client(redis_url, namespace="ours") as client:
        assert client.open("s", timeout=10).step("go", max_tokens=3).result(10).reason == "length"
    assert not redis.keys("theirs:*")
