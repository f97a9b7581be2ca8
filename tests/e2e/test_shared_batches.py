"""Thirty-two steps queued at once on the real model: served together, each with the tokens it gets alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from redis import Redis

from e2e.seen import QUICK, check_stream, final_stats, tokens_of
from tokenloom.producer import Client, Step
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

SESSIONS = 32
TOKENS = 24
OPENINGS = ("Once upon a time", "The recipe begins with", "import os\n\ndef main():", "In 1969, astronauts")


def enqueue(client: Client, name: str, number: int) -> Step:
    client.open(name, seed=number, wait=False)
    text = f"{OPENINGS[number % len(OPENINGS)]} {number}"
    # half of them greedy
    return client.session(name).step(text, max_tokens=TOKENS, temperature=number % 2, ignore_eos=True)


def test_steps_queued_together_share_forwards_and_keep_their_tokens(
    client: Client, redis: Redis, make_worker: MakeWorker, model_path: Path
) -> None:
    steps = [enqueue(client, f"s{number}", number) for number in range(SESSIONS)]
    make_worker(name="w", model=model_path, threads=1, kv_bytes="256M", **QUICK)
    results = [step.result(120) for step in steps]
    stats = final_stats(client, "w")
    assert stats["sessions_per_forward"] > 20
    assert stats["cycles"] < 2 * TOKENS
    assert stats["tokens_generated"] == SESSIONS * TOKENS
    for number in range(SESSIONS):
        assert tokens_of(check_stream(redis, f"s{number}")) == results[number].tokens
    for number in (0, 1, 17, 31):
        assert enqueue(client, f"alone{number}", number).result(60).tokens == results[number].tokens
