"""Sessions that are stepped, cloned, rewound and closed while their worker is killed again and again, at any moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from redis import Redis

from e2e.seen import QUICK, check_stream, log_of
from tokenloom.producer import Client
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

STORIES = 6


def story(client: Client, name: str, number: int) -> list[list[int]]:
    """A life of a session and its clones, the same for the same number; every log at the end of it."""
    chance = random.Random(number)
    sessions = [client.open(name, seed=number)]
    for turn in range(8):
        session = chance.choice(sessions)
        what = chance.choice(("step", "step", "continue", "clone", "rewind"))
        length = session.length() or 0
        if what == "step" or length == 0:
            session.step(f"turn {turn} ", max_tokens=chance.randint(1, 40), ignore_eos=True).result(60)
        elif what == "continue":
            session.step(max_tokens=chance.randint(1, 40), ignore_eos=True, at_length=length).result(60)
        elif what == "clone":
            upto = chance.randint(1, length)
            targets = [f"{name}.{turn}.{n}" for n in range(2)]
            sessions += session.clone(targets=targets, upto=upto, seeds=[turn, turn + 100])
        else:
            assert session.rewind(chance.randint(0, length)).length <= length
    return [log_of(client.connection, session.id) for session in sessions]


def stories(client: Client, prefix: str) -> list[list[list[int]]]:
    with ThreadPoolExecutor(STORIES) as pool:
        return list(pool.map(lambda number: story(client, f"{prefix}{number}", number), range(STORIES)))


def test_no_kill_at_any_moment_is_seen_in_a_session(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    settings = {"engine": "fake", "fake_seconds": 0.015, "max_deaths": 100, **QUICK}
    calm = make_worker(name="calm", engine="fake", **QUICK)
    expected = stories(client, "calm")
    calm.kill()

    over = threading.Event()
    worker = make_worker(name="w", **settings)
    kills = 0

    def kill_and_start() -> None:
        nonlocal kills
        chance = random.Random(kills)
        while kills < 6 and not over.wait(chance.uniform(0.05, 0.6)):
            worker.kill()
            kills += 1
            worker.start()

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    try:
        logs = stories(client, "s")
    finally:
        over.set()
        killer.join()
    assert kills >= 3, "too calm"
    assert logs == expected
    for number in range(STORIES):
        check_stream(redis, f"s{number}")
