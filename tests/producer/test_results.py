"""A step's result from wherever it is still known, and errors as classes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from rq.job import JobStatus

from tokenloom.producer import Client, ContextFull, NoSuchStep, StepFailed, Stopped, TokenloomError, WorkerFailed
from tokenloom.schemas import AppendedEvent, ErrorBody, FinishedEvent, StepRecord, StepResult, TokensEvent, Usage

Start = Callable[..., None]


def result_of(step: str) -> StepResult:
    usage = Usage(appended=1, generated=1)
    return StepResult(session="a", step=step, reason="length", tokens=[5], text="T", length=2, usage=usage)


def test_from_the_events_alone(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")
    background(lambda: worker.step("a", step.id, ["A", "B"], pause=0.1))
    began = time.monotonic()
    result = step.result(timeout=5)
    assert (result.text, result.tokens, result.length) == ("AB", [100, 101], 3)
    assert time.monotonic() - began < 0.6


def test_where_characters_were_cut_is_told_by_the_events_alone(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.emit("a", step.id, AppendedEvent, position=4, tokens=[7], before="\ufffd")
    worker.emit("a", step.id, TokensEvent, position=5, tokens=[8, 9], text="T")
    usage = Usage(appended=1, generated=2)
    worker.emit("a", step.id, FinishedEvent, reason="length", length=7, pending=2, usage=usage)
    result = step.result(timeout=5)
    assert (result.text, result.before, result.pending) == ("T", "\ufffd", 2)


def test_a_reader_who_comes_late_is_told_of_half_a_character(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    result = result_of(step.id).model_copy(update={"pending": 3})
    worker.remember(result)
    redis.delete(f"rq:job:{step.id}")
    late = client.step(step.id, "a")
    assert [event.pending for event in late if event.type == "finished"] == [3]
    assert late.result(timeout=5) == result


def test_from_the_sessions_record_when_events_were_trimmed(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.remember(worker.step("a", step.id, list("ABC")))
    redis.xtrim(worker.keys.events("a"), maxlen=1, approximate=False)
    assert step.result(timeout=5).text == "ABC"


def test_from_rq_when_the_session_is_gone(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.succeed(step.id, result_of(step.id))
    assert step.result(timeout=5) == result_of(step.id) == client.step(step.id).result(timeout=5)


def test_from_the_sessions_record_when_rq_has_forgotten(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.remember(result_of(step.id))
    redis.delete(f"rq:job:{step.id}", f"rq:results:{step.id}")
    with pytest.raises(NoSuchStep):
        client.step(step.id)
    assert client.step(step.id, "a").result(timeout=5) == result_of(step.id)
    assert [event.type for event in client.step(step.id, "a")] == ["tokens", "finished"]


def test_a_step_whose_result_nobody_has_is_an_error_and_no_endless_wait(client: Client, redis: Redis) -> None:
    step = client.session("a").step("x")
    redis.delete(f"rq:job:{step.id}")
    with pytest.raises(NoSuchStep, match="its result expired, or it was deleted"):
        step.result(timeout=10)
    with pytest.raises(NoSuchStep):
        list(client.step("never", "a"))


def test_a_running_record_is_not_the_end(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.record("a", step.id, StepRecord(base=0, appended=1, began=1.0))
    with pytest.raises(TimeoutError):
        step.result(timeout=0.3)


def test_the_time_is_kept_whatever_arrives(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")

    def chatter() -> None:
        for n in range(20):
            worker.emit("a", step.id, TokensEvent, position=n, tokens=[1], text="x")
            time.sleep(0.05)

    background(chatter)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no result of step .* within 0\.4 s"):
        step.result(timeout=0.4)
    assert time.monotonic() - began < 0.9


@pytest.mark.parametrize("reason", ["stop", "length", "cancelled", "timeout"])
def test_an_ending_that_is_no_error_returns(client: Client, worker: Any, reason: Any) -> None:
    step = client.session("a").step("x")
    worker.emit("a", step.id, FinishedEvent, reason=reason, length=0, usage=Usage(appended=0, generated=0))
    assert step.result(timeout=5).reason == reason


def test_an_error_is_raised_by_its_class_with_what_there_was(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    error = ErrorBody(code="context_full", message="no room", limit="8")
    record = StepRecord(
        base=0, appended=1, generated=1, began=1.0, ended=2.0, reason="error", error=error, result=result_of(step.id)
    )
    worker.record("a", step.id, record)
    worker.fail(step.id, "x")
    with pytest.raises(StepFailed) as caught:
        step.result(timeout=5)
    assert isinstance(caught.value, ContextFull)
    assert isinstance(caught.value, TokenloomError)
    assert caught.value.body == error
    assert caught.value.result == result_of(step.id)


def test_an_error_with_a_retry_left_is_not_the_end(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")
    job = worker.claim()
    error = ErrorBody(code="engine", message="x")
    worker.record("a", step.id, StepRecord(base=0, appended=1, began=1.0, ended=2.0, reason="error", error=error))
    usage = Usage(appended=0, generated=0)
    worker.emit("a", step.id, FinishedEvent, reason="error", length=0, usage=usage, error=error)
    job.set_status(JobStatus.SCHEDULED)
    background(lambda: (time.sleep(0.3), worker.remember(result_of(step.id)), worker.succeed(step.id, None)))  # type: ignore[func-returns-value]
    assert step.result(timeout=5) == result_of(step.id)


@pytest.mark.parametrize(
    ("text", "cls", "message"),
    [
        ("Traceback\n x\ntokenloom.schemas.errors.Stopped: [stopped] by stop-job", Stopped, "by stop-job"),
        ("Traceback\n x\nValueError: something else\n", WorkerFailed, "ValueError: something else"),
        (
            "rq.exceptions.DeserializationError",
            WorkerFailed,
            "an RQ worker without our serializer; run workers as `rq worker -w",
        ),
        ("Traceback\nRuntimeError: this job is served by tokenloom's worker only; start it", WorkerFailed, "start it"),
    ],
)
def test_a_failure_only_rq_knows_is_told_from_its_traceback(
    client: Client, worker: Any, text: str, cls: type[TokenloomError], message: str
) -> None:
    step = client.session("a").step("x")
    worker.fail(step.id, text)
    with pytest.raises(cls) as caught:
        step.result(timeout=5)
    assert isinstance(caught.value, StepFailed)
    assert message in caught.value.body.message


def test_a_result_of_a_run_before_the_job_was_requeued_is_not_taken(
    client: Client, worker: Any, background: Start
) -> None:
    step = client.session("a").step("x")
    worker.fail(step.id, "[engine] the first run")
    step.job.set_status(JobStatus.QUEUED)
    background(lambda: (time.sleep(0.3), worker.succeed(step.id, result_of(step.id))))  # type: ignore[func-returns-value]
    assert step.result(timeout=5) == result_of(step.id)
    assert client.step(step.id).result(timeout=5) == result_of(step.id)


def test_a_job_that_is_over_without_any_result_is_an_error(client: Client) -> None:
    step = client.session("a").step("x")
    step.job.set_status(JobStatus.FINISHED)
    with pytest.raises(WorkerFailed, match="RQ says finished and keeps no result"):
        step.result(timeout=5)


def test_a_result_that_is_not_ours_is_an_error(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.succeed(step.id, ErrorBody(code="engine", message="not a result"))
    with pytest.raises(WorkerFailed, match="the job's result cannot be read"):
        step.result(timeout=5)


def test_a_missing_worker_is_warned_of_while_waiting(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tokenloom.producer.watch.WARN_AFTER", 0.1)
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        client.open("a", timeout=2.5)
    (record,) = caplog.records
    assert "open" in record.message
    assert "no tokenloom worker is alive" in record.message


def test_cancel_leaves_a_mark_for_the_worker(client: Client, worker: Any, redis: Redis) -> None:
    redis.hset(worker.keys.session("a"), "length", 5)
    step = client.session("a").step("x", step_id="one")
    assert step.cancel() is True
    assert float(redis.hget(worker.keys.cancels("a"), "one")) == pytest.approx(time.time(), abs=5)
    assert redis.hkeys(worker.keys.session("a")) == [b"length"]
    assert client.cancel("one") is True
    assert client.cancel(step) is True


def test_a_mark_does_not_live_for_ever(client: Client, worker: Any, redis: Redis) -> None:
    client.session("a").step("x").cancel()
    assert 0 < redis.ttl(worker.keys.cancels("a")) <= 7 * 24 * 3600


@pytest.mark.parametrize("status", ["failed", "stopped", "canceled", None])
def test_cancelling_a_step_that_failed_leaves_no_mark_for_a_later_run(
    client: Client, worker: Any, redis: Redis, status: str | None
) -> None:
    step = client.session("a").step("x", step_id="one")
    worker.record("a", "one", StepRecord(base=0, appended=1, reason="error", began=1.0))
    redis.hset("rq:job:one", "status", "scheduled")
    assert step.cancel() is True, "RQ will try it again"
    redis.delete(worker.keys.cancels("a"))
    if status is None:
        redis.delete("rq:job:one")
    else:
        redis.hset("rq:job:one", "status", status)
    assert step.cancel() is False
    assert not redis.exists(worker.keys.cancels("a"))


def test_cancelling_a_step_that_is_over_changes_nothing(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.remember(result_of(step.id))
    assert step.cancel() is False
    assert not redis.exists(worker.keys.session("a"))
    with pytest.raises(NoSuchStep):
        client.cancel("gone")
