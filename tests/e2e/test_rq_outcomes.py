"""What RQ makes of steps that end: retries, dependencies, callbacks, schedules and timeouts, with the real worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Retry
from rq.job import Dependency

from e2e.callbacks import NOTES
from e2e.seen import QUICK, check_stream, events_of, log_of, tokens_of, wait_until
from tokenloom.producer import Client, InvalidRequest, NoSuchSession, StepFailed
from tokenloom.schemas import FinishedEvent
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

FAKE = {"engine": "fake", **QUICK}
#: A control token, which nothing but a test appends.
BROKEN = 258
TESTS = str(Path(__file__).parent.parent)


def status(step: Any) -> str:
    return str(step.job.get_status().value)


def notes(redis: Redis) -> list[str]:
    found: Any = redis.lrange(NOTES, 0, -1)
    return [note.decode() for note in found]


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may import ``e2e.callbacks``."""
    monkeypatch.setenv("PYTHONPATH", TESTS)


def test_retry_runs_a_failing_step_again_without_appending_again(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    make_worker(fake_fail_token=BROKEN, **FAKE)
    client.open("s", wait=False)
    client.open("t", wait=False)
    step = client.session("s").step(tokens=[97, BROKEN], max_tokens=5, retry=Retry(max=2))
    other = client.session("t").step("unharmed", max_tokens=50, ignore_eos=True)
    with pytest.raises(StepFailed, match="told to fail"):
        step.result(20)
    assert status(step) == "failed"
    ends = [event for event in events_of(redis, "s") if isinstance(event, FinishedEvent)]
    assert [end.reason for end in ends] == ["error"] * 3
    assert step.job.retries_left == 0
    assert log_of(redis, "s") == [97, BROKEN]
    assert [*step.events(timeout=5)][-1].id == ends[-1].id
    assert other.result(20).usage.generated == 50
    client.session("s").rewind(1)
    assert client.session("s").step(tokens=[98], max_tokens=5, ignore_eos=True).result(20).length == 7


def test_retry_succeeds_once_what_was_missing_is_there(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(options=("--with-scheduler",), **FAKE)
    step = client.session("s").step("hello", max_tokens=5, ignore_eos=True, retry=Retry(max=3, interval=1))
    wait_until(lambda: status(step) == "scheduled", what="the first failure")
    client.open("s")
    assert step.result(30).usage.generated == 5
    assert len(log_of(redis, "s")) == step.result(1).length
    wait_until(lambda: status(step) == "finished", what="RQ's record")
    ends = [event.reason for event in step if isinstance(event, FinishedEvent)]
    assert ends == ["error", "length"], "a late reader sees the failure and the retry"
    assert len(tokens_of(events_of(redis, "s"))) == 5


def test_enqueue_in_runs_the_step_when_its_time_has_come(client: Client, make_worker: MakeWorker) -> None:
    make_worker(options=("--with-scheduler",), **FAKE)
    client.open("s")
    began = time.time()
    step = client.session("s").step("later", max_tokens=2, ignore_eos=True, enqueue_in=1)
    assert status(step) == "scheduled"
    assert step.result(30).usage.generated == 2
    # RQ keeps the time in whole seconds, rounded down
    assert next(iter(step)).at >= int(began + 1)


def test_a_dependent_step_runs_after_the_one_it_depends_on(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    client.open("s", wait=False)
    client.open("t", wait=False)
    first = client.session("s").step("first", max_tokens=40, ignore_eos=True)
    second = client.session("t").step("second", max_tokens=3, ignore_eos=True, depends_on=first)
    assert status(second) == "deferred"
    make_worker(fake_seconds=0.005, **FAKE)
    assert second.result(20).usage.generated == 3
    end, begin = first.events(timeout=5), second.events(timeout=5)
    assert [*end][-1].at <= next(begin).at


def test_a_dependent_of_a_failed_step_waits_unless_it_allows_failure(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    make_worker(fake_fail_token=BROKEN, **FAKE)
    client.open("s")
    client.open("t")
    first = client.session("s").step(tokens=[BROKEN], max_tokens=1, enqueue_in=None)
    with pytest.raises(StepFailed):
        first.result(20)
    wait_until(lambda: status(first) == "failed", what="RQ's record")
    bound = client.session("t").step("bound", max_tokens=1, depends_on=first)
    free = client.session("t").step("free", max_tokens=1, depends_on=Dependency([first.job], allow_failure=True))
    assert free.result(20).reason == "length"
    assert status(bound) == "deferred"


@pytest.mark.usefixtures("importable")
def test_allowed_callbacks_run_once_with_what_they_need(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(fake_fail_token=BROKEN, callbacks="e2e.callbacks.succeeded,e2e.callbacks.failed", **FAKE)
    client.open("s")
    both: Any = {"on_success": Callback("e2e.callbacks.succeeded"), "on_failure": Callback("e2e.callbacks.failed")}
    client.session("s").step("fine", max_tokens=2, ignore_eos=True, step_id="fine", **both).result(20)
    wait_until(lambda: notes(redis) == ["succeeded fine length"], what="the success callback")
    broken = client.session("s").step(tokens=[BROKEN], max_tokens=2, step_id="broken", **both)
    with pytest.raises(StepFailed):
        broken.result(20)
    wait_until(lambda: len(notes(redis)) == 2, what="the failure callback")
    assert notes(redis)[1].startswith("failed broken ")


@pytest.mark.usefixtures("importable")
def test_a_callback_that_is_not_allowed_fails_its_job_and_never_runs(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    make_worker(callbacks="e2e.callbacks.succeeded", **FAKE)
    client.open("s")
    for option in ("on_success", "on_failure", "on_stopped"):
        given: Any = {option: Callback("e2e.callbacks.forbidden")}
        step = client.session("s").step("no", max_tokens=2, **given)
        with pytest.raises(InvalidRequest, match=r"'e2e\.callbacks\.forbidden' is not among the callbacks"):
            step.result(20)
        assert status(step) == "failed"
    assert client.session("s").step("yes", max_tokens=2, ignore_eos=True).result(20).usage.generated == 2
    assert notes(redis) == []
    assert log_of(redis, "s")[:3] == [*b"yes"]
    check_stream(redis, "s")


def test_job_timeout_ends_the_step_and_keeps_what_it_had(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(fake_seconds=0.02, **FAKE)
    client.open("s")
    client.open("t")
    step = client.session("s").step("endless", max_tokens=3000, ignore_eos=True, job_timeout=1)
    other = client.session("t").step("calm", max_tokens=80, ignore_eos=True)
    end = [*step][-1]
    assert isinstance(end, FinishedEvent)
    assert end.reason == "timeout"
    assert 10 < end.usage.generated < 200
    assert other.result(20).usage.generated == 80
    wait_until(lambda: status(step) == "failed", what="RQ's record")
    result = step.job.latest_result()
    assert result is not None
    assert "JobTimeoutException: Task exceeded maximum timeout value (1 seconds)" in str(result.exc_string)
    check_stream(redis, "s")
    assert client.session("s").step(max_tokens=1, at_length=end.length).result(10).reason == "length"


def test_a_deadline_ends_the_step_as_a_result(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(fake_seconds=0.02, **FAKE)
    client.open("s")
    result = client.session("s").step("endless", max_tokens=3000, ignore_eos=True, deadline=time.time() + 1).result(20)
    assert result.reason == "timeout"
    assert result.tokens == log_of(redis, "s")[7:]


def test_a_session_that_does_not_exist_is_named(client: Client, make_worker: MakeWorker) -> None:
    make_worker(**FAKE)
    with pytest.raises(NoSuchSession, match="session 'missing' does not exist"):
        client.session("missing").step("hello").result(20)
