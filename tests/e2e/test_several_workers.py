"""Several workers on one queue: each session has one owner at a time, whatever the workers believe."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from redis import Redis

from e2e.seen import QUICK, Reader, check_stream, final_stats, stats_of, tokens_of, wait_until
from tokenloom.producer import Client, Step
from tokenloom.schemas import Keys
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

SLOW = {"engine": "fake", "fake_seconds": 0.01, **QUICK}


def owners(redis: Redis, sessions: list[str]) -> set[str]:
    found: list[Any] = [redis.hget(Keys().session(session), "owner") for session in sessions]
    return {owner.decode().partition("#")[0] for owner in found if owner}


def begin(client: Client, prefix: str, numbers: range) -> list[Step]:
    """The first step of each session, long enough to be at work for a while."""
    for number in numbers:
        client.open(f"{prefix}{number}", seed=number, wait=False)
    return [client.session(f"{prefix}{number}").step("first", max_tokens=200, ignore_eos=True) for number in numbers]


def enqueue(client: Client, prefix: str, sessions: int, rounds: int) -> list[list[Step]]:
    """``rounds`` steps of each session, all at once; the second and later ones continue what is not there yet."""
    for number in range(sessions):
        client.open(f"{prefix}{number}", seed=number, wait=False)
    return [
        [
            client.session(f"{prefix}{number}").step(f"part {turn}", max_tokens=20, ignore_eos=True)
            for number in range(sessions)
        ]
        for turn in range(rounds)
    ]


def go_on(client: Client, prefix: str, sessions: int) -> list[list[Step]]:
    """Two more steps of each session, all at once."""
    return [
        [client.session(f"{prefix}{number}").step(part, max_tokens=20, ignore_eos=True) for number in range(sessions)]
        for part in ("second", "third")
    ]


def results(rounds: list[list[Step]]) -> list[list[list[int]]]:
    return [[step.result(60).tokens for step in steps] for steps in rounds]


def test_two_workers_share_the_sessions_and_keep_each_ones_order(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    names = [f"s{number}" for number in range(12)]
    make_worker(name="one", max_claimed=6, **SLOW)
    first = begin(client, "s", range(6))
    wait_until(lambda: owners(redis, names[:6]) == {"one"}, what="sessions with the first worker")
    make_worker(name="two", max_claimed=6, **SLOW)
    first += begin(client, "s", range(6, 12))
    shared = [first, *go_on(client, "s", 12)]
    tokens = results(shared)
    for number, name in enumerate(names):
        steps = [steps[number].id for steps in shared]
        ends = [event.job for event in check_stream(redis, name) if event.type == "finished"]
        assert ends == steps
    assert tokens == results([begin(client, "again", range(12)), *go_on(client, "again", 12)])
    served = [stats_of(redis, name)["steps_length"] for name in ("one", "two")]
    assert min(served) > 0


def test_a_worker_that_slept_past_its_lease_changes_nothing_and_begins_again(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    sleeper = make_worker(name="sleeper", **SLOW)
    readers = []
    for number in range(4):
        client.open(f"s{number}", seed=number)
        readers.append(Reader(client.session(f"s{number}").step("go", max_tokens=150, ignore_eos=True)))
    wait_until(lambda: all(reader.tokens > 20 for reader in readers), what="running streams")
    sleeper.send(signal.SIGSTOP)  # before the other starts, which may take longer than the streams would
    make_worker(name="waker", **SLOW)
    wait_until(lambda: owners(redis, ["s0", "s1", "s2", "s3"]) == {"waker"}, 10, what="the takeover")
    sleeper.send(signal.SIGCONT)
    tokens = [tokens_of(reader.done()) for reader in readers]
    again = []
    for number in range(4):
        assert tokens_of(check_stream(redis, f"s{number}")) == tokens[number]
        client.open(f"calm{number}", seed=number)
        again.append(client.session(f"calm{number}").step("go", max_tokens=150, ignore_eos=True))
    assert [step.result(60).tokens for step in again] == tokens
    wait_until(lambda: stats_of(redis, "sleeper"), what="the sleeper alive again")
    assert "begins anew" in sleeper.output()
    assert sleeper.process is not None
    assert sleeper.process.poll() is None


def test_a_takeover_by_a_worker_of_another_model_is_refused_by_name(client: Client, make_worker: MakeWorker) -> None:
    first = make_worker(name="first", **SLOW)
    session = client.open("s")
    session.step("go", max_tokens=2, ignore_eos=True).result(20)
    first.kill()
    make_worker(name="other", fake_context=512, **SLOW)
    step = session.step("on", max_tokens=2)
    wait_until(lambda: step.job.get_status().value == "failed", what="the refusal")
    result = step.job.latest_result()
    assert result is not None
    assert "[model_mismatch]" in str(result.exc_string)


def test_one_sequence_at_a_time_still_serves_many_sessions(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    many = make_worker(name="many", engine="fake", **QUICK)
    expected = results(enqueue(client, "many", 5, 2))
    many.terminate()
    make_worker(name="single", engine="fake", single_sequence="true", **QUICK)
    assert results(enqueue(client, "s", 5, 2)) == expected
    assert final_stats(client, "single")["resident"] <= 1
    (clone,) = client.session("s0").clone(seeds=[9])
    assert clone.length() == client.session("s0").length()
    assert clone.step(max_tokens=3, ignore_eos=True).result(20).usage.generated == 3


def test_short_cells_are_shared_out_and_change_no_token(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    wide = make_worker(name="wide", engine="fake", **QUICK)
    expected = results(enqueue(client, "wide", 12, 3))
    wide.terminate()
    make_worker(name="narrow", engine="fake", kv_bytes=1 << 20, max_sequences=3, **QUICK)
    began = time.monotonic()
    assert results(enqueue(client, "s", 12, 3)) == expected
    assert time.monotonic() - began < 30
    assert final_stats(client, "narrow")["evicted"] > 0
