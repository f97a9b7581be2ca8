"""Reading a step: its own events, each once, in order, whoever reads from where, and whatever happened to Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from rq.job import JobStatus

from tokenloom.producer import Client, ContextFull, Event, EventsLost, InvalidRequest, RedisUnavailable, StepFailed
from tokenloom.schemas import AppendedEvent, ErrorBody, FinishedEvent, OpenedEvent, TokensEvent, Usage

Start = Callable[..., None]


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def test_events_arrive_while_the_step_runs(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")
    background(lambda: worker.step("a", step.id, ["A", "B", "C"], pause=0.15))
    arrived = [(event, time.time()) for event in step]
    assert kinds([event for event, _ in arrived]) == ["appended", "tokens", "tokens", "tokens", "finished"]
    for event, when in arrived:
        assert when - event.at < 0.1
    ids = [event.id for event, _ in arrived]
    assert ids == sorted(ids, key=lambda id: tuple(map(int, id.split("-"))))


def test_only_the_steps_own_events_are_seen(client: Client, worker: Any) -> None:
    worker.step("a", "older", ["no"])
    step = client.session("a").step("x")
    worker.emit("a", "other", OpenedEvent, seed=1)
    result = worker.step("a", step.id, ["A", "B"])
    worker.step("a", "newer", ["no"], base=10)
    events = list(step)
    assert {event.job for event in events} == {step.id}
    assert "".join(step.stream_text()) == "AB" == step.text
    assert step.result() == result


def test_a_reader_resumes_after_any_event_without_gap_or_repeat(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.step("a", step.id, list("ABCDE"))
    whole = list(step)
    for n, event in enumerate(whole[:-1]):
        assert list(step.events(event.id)) == whole[n + 1 :]


def test_another_process_follows_a_step_by_its_id(client: Client, worker: Any, redis_url: str) -> None:
    worker.step("a", "older", ["no"])
    step = client.session("a").step("x", step_id="one")
    worker.step("a", "one", ["A", "B"])
    with Client(redis_url) as other:
        found = other.step("one")
        assert found.session == "a"
        assert list(found) == list(step)
        assert list(other.session("a").step("x", step_id="one")) == list(step)


def test_thousands_of_waiting_events_are_all_read(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.step("a", step.id, [f"{n} " for n in range(1500)])
    assert "".join(step.stream_text()) == "".join(f"{n} " for n in range(1500))


@pytest.mark.parametrize("from_id", ["x", "1-", "", "-1", "1-2-3", "*", ">"])
def test_what_is_not_a_stream_id_is_refused(client: Client, from_id: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a stream id"):
        client.session("a").step("x").events(from_id)


def test_a_killed_server_costs_no_event_and_repeats_none(
    valkey_server: Callable[..., Any], acting_worker: Any, background: Start
) -> None:
    server = valkey_server(appendfsync="always")
    client = Client(server.url)
    worker = acting_worker(server.client())
    step = client.session("a").step("x")

    def work() -> None:
        worker.emit("a", step.id, AppendedEvent, position=0, tokens=[7])
        for n in range(30):
            if n in (10, 20):
                server.kill()
                time.sleep(0.3)
                server.start()
            worker.emit("a", step.id, TokensEvent, position=1 + n, tokens=[n], text=f"{n} ")
            time.sleep(0.01)
        usage = Usage(appended=1, generated=30)
        worker.emit("a", step.id, FinishedEvent, reason="length", length=31, usage=usage)

    background(work)
    events = list(step)
    assert [event.position for event in events if isinstance(event, TokensEvent)] == list(range(1, 31))
    assert len({event.id for event in events}) == len(events) == 32


def test_patience_ends_with_a_clear_error(valkey_server: Callable[..., Any]) -> None:
    server = valkey_server()
    step = Client(server.url, patience=0.5).session("a").step("x")
    server.kill()
    began = time.monotonic()
    with pytest.raises(RedisUnavailable, match=r"no Redis at unix://.* for \d+ s"):
        list(step)
    assert time.monotonic() - began < 5


def test_a_quiet_step_times_out_and_says_whether_a_worker_is_alive(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    with pytest.raises(
        TimeoutError, match=r"no event of step .* within 0\.2 s: its status is queued; 1 job waits"
    ) as caught:
        list(step.events(timeout=0.2))
    assert "no tokenloom worker is alive: start one with `rq worker -w tokenloom.worker.BatchWorker" in str(
        caught.value
    )
    worker.alive("w1")
    with pytest.raises(TimeoutError, match="tokenloom workers alive: w1"):
        list(step.events(timeout=0.2))
    worker.redis.delete("rq:workers:steps")
    with pytest.raises(TimeoutError, match="no tokenloom worker serves it, and those alive serve others: w1"):
        list(step.events(timeout=0.2))


def test_the_timeout_of_events_counts_from_the_last_one(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")
    background(lambda: worker.step("a", step.id, ["A", "B", "C", "D"], pause=0.2))
    assert len(list(step.events(timeout=0.5))) == 6


def test_trimmed_events_are_not_passed_over_in_silence(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    worker.remember(worker.step("a", step.id, list("ABCDE")))
    whole = list(step)
    redis.xtrim(worker.keys.events("a"), maxlen=3, approximate=False)
    with pytest.raises(EventsLost, match="2 of its 5 tokens were still in the stream"):
        list(step)
    with pytest.raises(EventsLost):
        list(step.events(whole[1].id))
    assert step.result().text == "ABCDE"


def test_a_gap_in_the_middle_is_noticed_at_once(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.emit("a", step.id, AppendedEvent, position=0, tokens=[7])
    worker.emit("a", step.id, TokensEvent, position=3, tokens=[1], text="x")
    events = iter(step)
    with pytest.raises(EventsLost, match="tokens 1 to 2 of the log were trimmed"):
        list(events)


def test_a_step_over_without_events_is_told_from_what_is_remembered(client: Client, worker: Any, redis: Redis) -> None:
    step = client.session("a").step("x")
    result = worker.step("a", step.id, ["A", "B"])
    worker.remember(result)
    worker.succeed(step.id, result)
    redis.delete(worker.keys.events("a"))
    tokens, finished = client.step(step.id)
    assert (tokens.tokens, tokens.text, tokens.position, tokens.id) == (result.tokens, "AB", 1, None)
    assert (finished.reason, finished.length, finished.usage) == ("stop", 3, result.usage)
    assert "".join(step.stream_text()) == "AB"
    with pytest.raises(EventsLost):
        list(step.events("1-1"))


def test_a_step_cancelled_in_rq_before_it_ran_ends(client: Client) -> None:
    step = client.session("a").step("x")
    step.job.cancel()
    (finished,) = step.events(timeout=5)
    assert finished.error.message == "the job was cancelled in RQ before it ran"


def test_a_failed_step_raises_from_its_text(client: Client, worker: Any) -> None:
    step = client.session("a").step("x")
    worker.claim()
    error = ErrorBody(code="context_full", message="9 tokens do not fit 8")
    usage = Usage(appended=0, generated=0)
    worker.emit("a", step.id, FinishedEvent, reason="error", length=0, usage=usage, error=error)
    worker.fail(step.id, "whatever")
    with pytest.raises(ContextFull, match="9 tokens do not fit 8") as caught:
        list(step.stream_text())
    assert isinstance(caught.value, StepFailed)


def test_a_step_that_rq_retries_goes_on_after_its_error(client: Client, worker: Any, background: Start) -> None:
    step = client.session("a").step("x")
    usage = Usage(appended=0, generated=0)

    def work() -> None:
        job = worker.claim()
        error = ErrorBody(code="engine", message="forward failed")
        worker.emit("a", step.id, FinishedEvent, reason="error", length=0, usage=usage, error=error)
        time.sleep(0.1)
        job.set_status(JobStatus.SCHEDULED)
        time.sleep(0.3)
        worker.step("a", step.id, ["A", "B"])

    background(work)
    assert kinds(list(step)) == ["finished", "appended", "tokens", "tokens", "finished"]
    assert step.result(timeout=5).text == "AB"
