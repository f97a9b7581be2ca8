"""A step's id is its identity: however often it is enqueued, and by whom, it runs once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from redis import Redis

from e2e.seen import QUICK, Reader, check_stream, log_of, tokens_of, wait_until
from tokenloom.producer import Client, InvalidRequest
from tokenloom.schemas import AppendedEvent
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

SLOW = {"engine": "fake", "fake_seconds": 0.01, **QUICK}

PRODUCER = """
import sys
from tokenloom.producer import Client

client = Client(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    step = client.session("s").step("once", max_tokens=5, ignore_eos=True, step_id=f"id-{number}")
    print(step.result(30).tokens, flush=True)
"""


def test_two_processes_that_enqueue_the_same_ids_at_once_run_each_once(
    client: Client, redis: Redis, redis_url: str, make_worker: MakeWorker
) -> None:
    make_worker(engine="fake", **QUICK)
    client.open("s", seed=1)
    command = [sys.executable, "-c", PRODUCER, redis_url]
    producers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for producer in producers:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "ready\n"
    for producer in producers:
        assert producer.stdin is not None
        producer.stdin.write("\n")
        producer.stdin.flush()
    printed = [producer.communicate(timeout=60)[0] for producer in producers]
    assert [producer.returncode for producer in producers] == [0, 0]
    assert printed[0] == printed[1]
    assert printed[0].count("\n") == 20
    events = check_stream(redis, "s")
    begun = [event.job for event in events if isinstance(event, AppendedEvent)]
    assert begun == [f"id-{number}" for number in range(20)]
    assert len(log_of(redis, "s")) == 20 * (len(b"once") + 5)


def test_the_same_id_attaches_to_the_running_step(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(**SLOW)
    session = client.open("s", seed=1)
    reader = Reader(session.step("once", max_tokens=100, ignore_eos=True, step_id="same"))
    wait_until(lambda: reader.tokens >= 10, what="a running step")
    again = Reader(session.step("once", max_tokens=100, ignore_eos=True, step_id="same"))
    assert [event.id for event in again.done()] == [event.id for event in reader.done()]
    assert len(log_of(redis, "s")) == 104


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_same_id_after_its_end_returns_the_result_and_runs_nothing(
    client: Client, redis: Redis, make_worker: MakeWorker, forgotten: bool
) -> None:
    make_worker(engine="fake", **QUICK)
    session = client.open("s", seed=1)
    first = session.step("once", max_tokens=5, ignore_eos=True, step_id="same")
    expected = first.result(20)
    wait_until(lambda: first.job.get_status().value == "finished", what="RQ's record")
    if forgotten:  # RQ's own record expires long before the session's
        first.job.delete()
    session.step("between", max_tokens=1)
    again = session.step("once", max_tokens=5, ignore_eos=True, step_id="same")
    assert again.result(20) == expected
    if forgotten:
        wait_until(lambda: again.job.get_status().value == "finished", what="RQ's record")
    assert session.step(max_tokens=0).result(20).length == expected.length + len(b"between") + 1
    assert len(tokens_of(check_stream(redis, "s"), "same")) == 5


def test_an_id_of_another_session_is_refused(client: Client, make_worker: MakeWorker) -> None:
    make_worker(engine="fake", **QUICK)
    one, other = client.open("one"), client.open("other")
    one.step("once", max_tokens=1, step_id="same").result(20)
    with pytest.raises(InvalidRequest, match="the id same is taken by another job"):
        other.step("once", max_tokens=1, step_id="same")
