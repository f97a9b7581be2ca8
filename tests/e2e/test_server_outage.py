"""Redis dies and comes back, or cuts every connection, in the middle of streams: they go on, nothing is doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from e2e.seen import QUICK, Reader, check_stream, final_stats, tokens_of, wait_until
from tokenloom.producer import Client
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

SESSIONS = 4
TOKENS = 200
SLOW = {"engine": "fake", "fake_seconds": 0.01, **QUICK}


@pytest.fixture
def server(valkey_server: Callable[..., ValkeyServer]) -> ValkeyServer:
    """A server of the test's own, its append-only file on."""
    return valkey_server()


@pytest.fixture
def own(server: ValkeyServer) -> Iterator[Client]:
    """A producer's client of it."""
    with Client(server.url) as client:
        yield client


def streams(client: Client, name: str) -> list[Reader]:
    for number in range(SESSIONS):
        client.open(f"{name}{number}", seed=number, wait=False)
    return [
        Reader(
            client.session(f"{name}{number}").step(
                "begin", max_tokens=TOKENS, ignore_eos=True, step_id=f"{name}{number}-s"
            )
        )
        for number in range(SESSIONS)
    ]


def go_on(readers: list[Reader]) -> None:
    """Returns once every stream has gone on."""
    before = [reader.tokens for reader in readers]
    wait_until(lambda: all(r.tokens > b for r, b in zip(readers, before, strict=True)), what="streams going on")


def rq_says_finished(reader: Reader) -> None:
    """Returns once RQ has it, too."""
    wait_until(lambda: reader.step.job.get_status().value == "finished", what="RQ's record")


def calm_and_disturbed(client: Client, disturb: Callable[[list[Reader]], None]) -> list[Reader]:
    """Runs the same streams twice, disturbs the second ones, and checks that they are equal and whole."""
    expected = [tokens_of(reader.done()) for reader in streams(client, "calm")]
    readers = streams(client, "s")
    wait_until(lambda: all(reader.tokens >= 20 for reader in readers), what="20 tokens of each stream")
    disturb(readers)
    for number, (reader, tokens) in enumerate(zip(readers, expected, strict=True)):
        assert tokens_of(reader.done()) == tokens
        assert tokens_of(check_stream(client.connection, f"s{number}")) == tokens
        assert reader.step.result(10).tokens == tokens
    for reader in readers:
        rq_says_finished(reader)
    return readers


def test_streams_survive_a_killed_server(own: Client, server: ValkeyServer, make_worker: MakeWorker) -> None:
    make_worker(name="w", redis_url=server.url, **SLOW)

    def kill_twice(readers: list[Reader]) -> None:
        for away in (0.3, 2.5):  # shorter and longer than the lease
            server.kill()
            time.sleep(away)
            server.start()
            go_on(readers)

    calm_and_disturbed(own, kill_twice)
    assert final_stats(own, "w")["steps_length"] == 2 * SESSIONS


def test_streams_survive_cut_connections(own: Client, server: ValkeyServer, make_worker: MakeWorker) -> None:
    make_worker(name="w", redis_url=server.url, **SLOW)
    killed: list[int] = []

    def cut(readers: list[Reader]) -> None:
        with server.client() as control:
            while not all(reader.tokens >= 100 for reader in readers):
                killed.append(int(control.client_kill_filter(_type="normal", skipme=True)))
                control.client_kill_filter(_type="pubsub", skipme=True)
                time.sleep(0.05)

    calm_and_disturbed(own, cut)
    assert sum(killed) > SESSIONS, "connections were cut while the streams ran"


def test_a_worker_without_redis_keeps_what_it_had_and_begins_again(
    own: Client, server: ValkeyServer, make_worker: MakeWorker
) -> None:
    worker = make_worker(name="w", redis_url=server.url, **SLOW)
    first = own.open("idle", seed=1).step("before", max_tokens=5).result(20)
    server.kill()
    time.sleep(1.5)
    server.start()
    again = own.session("idle").step("after", max_tokens=5, at_length=first.length).result(20)
    assert again.length > first.length
    assert worker.process is not None
    assert worker.process.poll() is None
