"""A worker ends in the middle of eight streams: every event comes once, in order, with the tokens of a calm run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import Redis
from rq import Retry

from e2e.seen import QUICK, Reader, check_stream, events_of, log_of, tokens_of, wait_until
from tokenloom.producer import Client
from tokenloom.schemas import FinishedEvent, Keys
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

STREAMS = 8
TOKENS = 120
LONGEST = 400
SLOW = {"engine": "fake", "fake_seconds": 0.01, **QUICK}


def prompt(number: int) -> list[int]:
    return [97 + number, *range(97, 117 + number)]


def open_sessions(client: Client, prefix: str, count: int, *, wait: bool = False) -> None:
    for number in range(count):
        opened = client.open(f"{prefix}{number}", seed=1000 + number, wait=False)
        if wait:
            opened.result(30)


def start_streams(client: Client, prefix: str, lengths: Sequence[int], **options: Any) -> list[Reader]:
    """One sampled stream a session, and its reader; the n-th session always has the same seed and prompt."""
    open_sessions(client, prefix, len(lengths))
    return streams_of(client, prefix, lengths, **options)


def streams_of(client: Client, prefix: str, lengths: Sequence[int], **options: Any) -> list[Reader]:
    """The streams of sessions that are open."""
    return [
        Reader(
            client.session(f"{prefix}{number}").step(
                tokens=prompt(number),
                max_tokens=length,
                temperature=1.0,
                ignore_eos=True,
                step_id=f"{prefix}{number}-step",
                **options,
            ),
            wanted=length,
        )
        for number, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def undisturbed(valkey: ValkeyServer, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The tokens of the same streams had nothing happened; shorter ones are the beginnings of these."""
    log = tmp_path_factory.mktemp("undisturbed") / "log"
    with valkey.client() as left_over:  # by the last test of another module: this comes before the test's own fixtures
        left_over.flushall()
    worker = WorkerProcess(valkey.url, log, name="undisturbed", settings={"engine": "fake", **QUICK}).start()
    try:
        with Client(valkey.url) as client:
            return [tokens_of(reader.done()) for reader in start_streams(client, "calm", [LONGEST] * STREAMS)]
    finally:
        worker.kill()


def all_beyond(readers: Sequence[Reader], tokens: int) -> None:
    wait_until(lambda: all(reader.tokens >= tokens for reader in readers), what=f"{tokens} tokens of each stream")


def check(redis: Redis, readers: Sequence[Reader], undisturbed: Sequence[list[int]]) -> None:
    """Readers, streams and logs all hold exactly the tokens of the undisturbed run."""
    for number, reader in enumerate(readers):
        session = reader.step.session
        tokens = undisturbed[number][: reader.wanted]
        assert tokens_of(reader.done()) == tokens
        in_stream = check_stream(redis, session)
        assert tokens_of(in_stream) == tokens
        assert [event.id for event in in_stream if event.job == reader.step.id] == [e.id for e in reader.events]
        assert log_of(redis, session) == prompt(number) + tokens
        assert reader.step.result(5).tokens == tokens


def queued(redis: Redis) -> list[str]:
    ids: Any = redis.lrange("rq:queue:steps", 0, -1)
    return [id.decode() for id in ids]


def test_sigkill_loses_and_doubles_nothing(
    client: Client, redis: Redis, make_worker: MakeWorker, undisturbed: list[list[int]]
) -> None:
    worker = make_worker(**SLOW)
    readers = start_streams(client, "s", [TOKENS] * STREAMS, retry=Retry(max=2))
    for beyond in (20, 60):
        all_beyond(readers, beyond)
        worker.kill()
        worker.start()
    check(redis, readers, undisturbed)
    for reader in readers:
        job = reader.step.job
        assert job.retries_left == 2, "a death of the worker costs no retry"
        assert job.get_status().value == "finished"


def test_sigkill_then_another_worker_takes_over_within_the_lease(
    client: Client, redis: Redis, make_worker: MakeWorker, undisturbed: list[list[int]]
) -> None:
    worker = make_worker(name="first", **SLOW)
    open_sessions(client, "s", STREAMS, wait=True)
    make_worker(name="second", **SLOW)  # finds the sessions owned, and their steps go to the first
    readers = streams_of(client, "s", [TOKENS] * STREAMS)
    all_beyond(readers, 10)
    worker.kill()
    killed = time.time()
    check(redis, readers, undisturbed)
    for reader in readers:
        later = [event.at for event in reader.events if event.at > killed]
        assert later, f"{reader.step.id} was over before the kill"
        assert later[0] - killed < QUICK["lease"] + QUICK["heartbeat"] + 1.0
    owners: set[Any] = {redis.hget(Keys().session(f"s{number}"), "owner") for number in range(STREAMS)}
    assert {owner.partition(b"#")[0] for owner in owners if owner} == {b"second"}


def test_sigterm_without_grace_puts_everything_back_at_the_front_in_order(
    client: Client, redis: Redis, make_worker: MakeWorker, undisturbed: list[list[int]]
) -> None:
    worker = make_worker(grace=0, max_claimed=STREAMS, **SLOW)
    readers = start_streams(client, "s", [TOKENS] * STREAMS, retry=Retry(max=1))
    wait_until(lambda: len(queued(redis)) == 0)
    client.open("later", wait=False)
    client.session("later").step(tokens=[97], max_tokens=1, step_id="later-step")
    all_beyond(readers, 30)
    began = time.monotonic()
    assert worker.terminate() == 0
    assert time.monotonic() - began < 3
    waiting = queued(redis)
    assert waiting[:STREAMS] == [reader.step.id for reader in readers]
    assert waiting[-1] == "later-step"
    for reader in readers:
        assert (reader.step.job.retries_left, reader.step.job.get_status().value) == (1, "queued")
        assert redis.hget(f"rq:job:{reader.step.id}", "tokenloom_deaths") is None
    assert all(len(log_of(redis, reader.step.session)) > 30 for reader in readers), "progress is kept"
    worker.start()
    check(redis, readers, undisturbed)
    assert client.step("later-step").result(10).usage.generated == 1


def test_sigterm_with_grace_finishes_what_fits_and_puts_back_the_rest(
    client: Client, redis: Redis, make_worker: MakeWorker, undisturbed: list[list[int]]
) -> None:
    lengths = [60, LONGEST] * 4
    worker = make_worker(grace=2, **SLOW)
    readers = start_streams(client, "s", lengths)
    all_beyond(readers, 20)
    began = time.monotonic()
    assert worker.terminate() == 0
    assert 1.9 < time.monotonic() - began < 5
    assert queued(redis) == [f"s{number}-step" for number in (1, 3, 5, 7)]
    for number in (0, 2, 4, 6):
        assert any(isinstance(event, FinishedEvent) for event in events_of(redis, f"s{number}"))
    worker.start()
    check(redis, readers, undisturbed)


def test_second_signal_ends_the_grace_at_once(
    client: Client, redis: Redis, make_worker: MakeWorker, undisturbed: list[list[int]]
) -> None:
    worker = make_worker(grace=60, **SLOW)
    readers = start_streams(client, "s", [TOKENS * 2])
    all_beyond(readers, 10)
    worker.send(signal.SIGTERM)
    time.sleep(1.1)
    assert worker.process is not None
    assert worker.process.poll() is None, "the grace was not given"
    worker.send(signal.SIGINT)
    assert worker.wait(5) == 0
    assert queued(redis) == ["s0-step"]
    worker.start()
    check(redis, readers, undisturbed)
