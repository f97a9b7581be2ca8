"""What a worker's hash says of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis import Redis

from tokenloom.producer import Client
from worker_process import WorkerProcess


def test_an_idle_workers_figures_are_those_after_its_last_step(
    redis: Redis, redis_url: str, make_worker: Callable[..., WorkerProcess]
) -> None:
    make_worker(name="W", engine="fake")
    session = Client(redis_url).open(seed=1)
    session.step(tokens=[1], max_tokens=3, ignore_eos=True).result(timeout=30)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        figures = redis.hgetall("tokenloom:worker:W")
        if figures.get(b"steps_length") == b"1" and figures[b"running"] == b"0" and figures[b"active"] == b"0":
            break
        time.sleep(0.1)
    assert (figures[b"steps_length"], figures[b"running"], figures[b"active"]) == (b"1", b"0", b"0")
    assert figures[b"tokens_generated"] == b"3"
