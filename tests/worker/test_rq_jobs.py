"""How jobs end, as RQ's users expect: results, retries, callbacks, dependents, groups, stops, timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue, Repeat, Retry
from rq.command import send_stop_execution_command, send_stop_job_command
from rq.group import Group
from rq.job import Dependency, Job
from rq.queue import Queue as RQQueue

from e2e.seen import wait_until
from job_tools import KEYS, STEP, Side, enqueue, ids, queue, status
from scripted_worker import ScriptedCycle, ScriptedWorker
from tokenloom.schemas import MsgpackSerializer
from tokenloom.worker.jobs.scripts import Scripts
from valkey_server import ValkeyServer

CALLBACKS = ",".join(f"scripted_worker.noted_{what}" for what in ("success", "failure", "stop"))


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, signal_handlers: None) -> None:
    """The worker's environment."""
    monkeypatch.setenv("TOKENLOOM_ENGINE", "fake")
    monkeypatch.setenv("TOKENLOOM_HEARTBEAT", "0.1")
    monkeypatch.setenv("TOKENLOOM_CALLBACKS", CALLBACKS)


@pytest.fixture
def worker(valkey: ValkeyServer, redis: Redis) -> Iterator[Callable[..., ScriptedWorker]]:
    """Makes workers of this process, named a, b, ..."""
    links: list[Redis] = []

    def make(*queues: str, name: str = "a", **options: object) -> ScriptedWorker:
        links.append(valkey.client())
        queues = queues or ("steps",)
        return ScriptedWorker(
            list(queues),
            name=name,
            connection=links[-1],
            serializer=MsgpackSerializer,
            **options,
        )

    yield make
    for link in links:
        link.close()


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs a function beside the test; what it raises fails the test."""
    threads: list[threading.Thread] = []
    raised: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                function()
            except BaseException as error:
                raised.append(error)

        threads.append(threading.Thread(target=guarded))
        threads[-1].start()

    yield run
    for thread in threads:
        thread.join(20)
    assert not raised


def fetch(redis: Redis, id: str) -> Job:
    return Job.fetch(id, connection=redis, serializer=MsgpackSerializer)


def began(redis: Redis) -> list[str]:
    """Ids of jobs in the order in which the cycle got them."""
    return [entry.split(":")[2] for entry in ids(redis, "began")]


def failure(redis: Redis, id: str) -> str:
    """What RQ keeps of why a job failed."""
    result = fetch(redis, id).latest_result()
    assert result is not None
    return str(result.exc_string)


def nothing_left_of(redis: Redis, id: str) -> bool:
    assert redis.zscore(KEYS.worker_jobs("a"), id) is None
    assert not redis.keys(f"rq:execution*{id}*")
    assert redis.zcard("rq:wip:steps") == 0
    return True


def test_a_finished_job_has_its_result_for_as_long_as_asked(
    redis: Redis, worker: Callable[..., ScriptedWorker]
) -> None:
    enqueue(redis, "s", "default")
    enqueue(redis, "s", "short", result_ttl=20)
    enqueue(redis, "s", "none", result_ttl=0)
    assert worker().work(burst=True) is True
    result: Any = fetch(redis, "default").return_value()
    assert result["session"] == "s"
    assert result["reason"] == "length"
    latest = fetch(redis, "default").latest_result()
    assert latest is not None
    assert latest.worker_name == "a"
    assert 480 < redis.ttl("rq:results:default") <= 500
    assert 0 < redis.ttl("rq:job:short") <= 20
    assert not redis.exists("rq:job:none")
    assert not redis.exists("rq:results:none")
    assert fetch(redis, "default").finished_job_registry.get_job_ids() == ["short", "default"]
    assert nothing_left_of(redis, "default")
    assert int(redis.hget("rq:worker:a", "successful_job_count") or 0) == 3


def test_a_failed_job_says_why(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    enqueue(redis, "s", "j", kwargs={"text": "fail"})
    worker(exception_handlers=[__import__("scripted_worker").noted_exception]).work(burst=True)
    job = fetch(redis, "j")
    assert job.get_status() == "failed"
    assert "j" in job.failed_job_registry
    text = failure(redis, "j")
    assert text.rstrip().endswith("[engine] this step fails")
    assert redis.lrange("handled", 0, -1) == [b"j"]
    assert nothing_left_of(redis, "j")


def test_a_refused_job_fails_without_retries_beside_one_that_runs(
    redis: Redis, worker: Callable[..., ScriptedWorker]
) -> None:
    queue(redis).enqueue("os.system", kwargs={"command": "touch nothing"}, job_id="bad", retry=Retry(max=5))
    enqueue(redis, "s", "good")
    worker().work(burst=True)
    assert status(redis, "bad") == "failed"
    assert status(redis, "good") == "finished"
    text = failure(redis, "bad")
    assert "[unknown_job]" in text.splitlines()[-1]


def test_retries_come_at_once_or_when_due(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    enqueue(redis, "s", "now", kwargs={"text": "fail"}, retry=Retry(max=2))
    enqueue(redis, "t", "later", kwargs={"text": "fail"}, retry=Retry(max=1, interval=60))
    worker().work(burst=True)
    order = began(redis)
    assert order.count("now") == 3
    assert order.count("later") == 1
    assert status(redis, "now") == "failed"
    assert status(redis, "later") == "scheduled"
    assert redis.zscore("rq:scheduled:steps", "later") is not None
    assert nothing_left_of(redis, "now")
    assert nothing_left_of(redis, "later")


def test_dependents_run_after_what_they_depend_on(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    enqueue(redis, "s", "first")
    enqueue(redis, "t", "second", depends_on="first")
    enqueue(redis, "u", "fails", kwargs={"text": "fail"})
    enqueue(redis, "u", "never", depends_on="fails")
    enqueue(redis, "u", "anyway", depends_on=Dependency("fails", allow_failure=True))
    worker().work(burst=True)
    order = began(redis)
    assert sorted(order) == ["anyway", "fails", "first", "second"]
    assert order.index("second") > order.index("first")
    assert status(redis, "never") == "deferred"


def test_allowed_callbacks_run_and_a_raising_one_fails_the_job(
    redis: Redis, worker: Callable[..., ScriptedWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CALLBACKS", CALLBACKS + ",scripted_worker.missing")
    success, failure = Callback("scripted_worker.noted_success"), Callback("scripted_worker.noted_failure")
    enqueue(redis, "s", "good", on_success=success, on_failure=failure)
    enqueue(redis, "s", "bad", kwargs={"text": "fail"}, on_success=success, on_failure=failure)
    enqueue(redis, "s", "raises", on_success=Callback("scripted_worker.missing"), on_failure=failure)
    worker().work(burst=True)
    assert sorted(redis.lrange("callbacks", 0, -1)) == [
        b"failure:bad:WorkerFailed",
        b"failure:raises:ValueError",
        b"success:good:s",
    ]
    assert status(redis, "good") == "finished"
    assert status(redis, "raises") == "failed"


def test_groups_repeats_and_the_scheduler_of_a_burst(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    group = Group.create(connection=redis)
    options: dict[str, Any] = {"kwargs": {"session": "s"}, "meta": {"sessions": ["s"]}}
    members = [Queue.prepare_data(STEP, job_id=f"g{number}", **options) for number in range(2)]
    group.enqueue_many(queue(redis), members)
    enqueue(redis, "t", "again", repeat=Repeat(times=2))
    queue(redis).enqueue_in(timedelta(seconds=-1), STEP, session="u", job_id="due")
    worker().work(burst=True, with_scheduler=True)
    order = began(redis)
    assert order.count("again") == 3
    assert order.count("due") == 1
    assert {status(redis, id) for id in ("g0", "g1", "due", "again")} == {"finished"}


def test_a_job_is_stopped_by_command_whichever_it_is(
    redis: Redis, worker: Callable[..., ScriptedWorker], meanwhile: Callable[..., None]
) -> None:
    for number in range(3):
        enqueue(
            redis,
            f"s{number}",
            f"j{number}",
            kwargs={"text": "hang"},
            retry=Retry(max=3),
            on_stopped=Callback("scripted_worker.noted_stop"),
        )

    def stop() -> None:
        wait_until(lambda: redis.llen("began") == 3)
        send_stop_job_command(redis, "j1", serializer=MsgpackSerializer)
        wait_until(lambda: status(redis, "j1") == "stopped")
        execution = fetch(redis, "j2").get_executions()[0]
        send_stop_execution_command(redis, "j2", execution.id)
        wait_until(lambda: status(redis, "j2") == "stopped")
        assert status(redis, "j0") == "started"
        redis.publish("rq:pubsub:a", "nonsense")
        send_stop_job_command(redis, "j0", serializer=MsgpackSerializer)

    meanwhile(stop)
    worker().work(burst=True)
    assert redis.lrange("callbacks", 0, -1) == [b"stopped:j1", b"stopped:j2", b"stopped:j0"]
    job = fetch(redis, "j1")
    assert "j1" in job.failed_job_registry
    assert "stopped by user" in failure(redis, "j1")


def test_a_jobs_timeout_strikes(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    enqueue(redis, "s", "j", kwargs={"text": "hang"}, job_timeout=1)
    enqueue(redis, "t", "endless", kwargs={"generation": {"max_tokens": 250}}, job_timeout=-1)
    began = time.monotonic()
    worker().work(burst=True)
    assert 1.0 <= time.monotonic() - began < 5
    text = failure(redis, "j")
    assert text.rstrip().endswith("JobTimeoutException: Task exceeded maximum timeout value (1 seconds)")
    assert status(redis, "endless") == "finished"


def test_cancelling_or_deleting_a_running_job_is_noticed(
    redis: Redis, worker: Callable[..., ScriptedWorker], meanwhile: Callable[..., None]
) -> None:
    enqueue(redis, "s", "cancelled", kwargs={"text": "hang"})
    enqueue(redis, "t", "deleted", kwargs={"text": "hang"})

    def cancel() -> None:
        wait_until(lambda: redis.llen("began") == 2)
        fetch(redis, "cancelled").cancel()
        fetch(redis, "deleted").delete()

    meanwhile(cancel)
    began = time.monotonic()
    worker().work(burst=True)
    assert time.monotonic() - began < 3
    assert status(redis, "cancelled") == "canceled"
    assert not redis.exists("rq:job:deleted")
    assert redis.zscore("rq:canceled:steps", "cancelled") is not None
    assert nothing_left_of(redis, "cancelled")
    assert nothing_left_of(redis, "deleted")


def test_burst_takes_all_there_is_and_max_jobs_no_more(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    for number in range(130):
        enqueue(redis, f"s{number}", f"j{number:03}")
    assert worker().work(burst=True, max_jobs=5)
    assert redis.llen("began") == 5
    assert redis.llen("rq:queue:steps") == 125
    assert worker().work(burst=True)
    assert redis.llen("began") == 130
    assert worker().work(burst=True) is False


def test_an_idle_worker_ends_when_told_to_and_wakes_at_once_until_then(
    redis: Redis, worker: Callable[..., ScriptedWorker], meanwhile: Callable[..., None]
) -> None:
    delays: list[float] = []

    def enqueue_late() -> None:
        wait_until(lambda: redis.hget("rq:worker:a", "state") == b"idle")
        for number in range(3):
            time.sleep(0.3)
            at = time.monotonic()
            enqueue(redis, "s", f"j{number}")
            wait_until(lambda: len(began(redis)) > len(delays))
            delays.append(time.monotonic() - at)

    meanwhile(enqueue_late)
    worker("steps", "other").work(max_idle_time=2)
    assert len(delays) == 3
    assert max(delays) < 0.25


def test_suspended_workers_run_what_they_have_and_take_nothing(
    redis: Redis, worker: Callable[..., ScriptedWorker], meanwhile: Callable[..., None]
) -> None:
    from rq.suspension import resume, suspend

    enqueue(redis, "s", "running", kwargs={"generation": {"max_tokens": 100}})

    def halt() -> None:
        wait_until(lambda: redis.llen("began") == 1)
        suspend(redis)
        enqueue(redis, "t", "waiting")
        wait_until(lambda: status(redis, "running") == "finished")
        wait_until(lambda: redis.hget("rq:worker:a", "state") == b"suspended")
        assert ids(redis) == ["waiting"]
        resume(redis)

    meanwhile(halt)
    worker().work(max_jobs=2)
    assert status(redis, "waiting") == "finished"


def test_a_lost_lease_is_noticed_and_life_goes_on(
    redis: Redis, worker: Callable[..., ScriptedWorker], meanwhile: Callable[..., None]
) -> None:
    """The worker is buried while its job runs; it drops the job, begins anew, and takes the job again."""
    enqueue(redis, "s", "j", kwargs={"generation": {"max_tokens": 100}})
    mine = worker()
    Side(redis, "b")

    def bury() -> None:
        wait_until(lambda: redis.llen("began") == 1)
        with redis.pipeline() as pipe:
            pipe.delete(KEYS.worker("a"))
            Scripts(redis, KEYS)("reap", ["b"], pipe)
            assert pipe.execute()[1] == [b"a", 1]

    meanwhile(bury)
    mine.work(burst=True)
    assert isinstance(mine.cycle, ScriptedCycle)
    assert mine.cycle.forgotten == 1
    assert mine.cycle.incarnations == [mine._lease.incarnation]
    assert redis.llen("began") == 2
    assert status(redis, "j") == "finished"
    assert redis.hget("rq:job:j", "worker_name") == b"a"


def test_the_queue_class_of_the_user_is_used(redis: Redis, worker: Callable[..., ScriptedWorker]) -> None:
    class MyQueue(RQQueue):
        pass

    mine = worker(queue_class=MyQueue)
    enqueue(redis, "s", "j")
    assert mine.work(burst=True)
    assert type(mine._finalizer.queue_of(fetch(redis, "j"))) is MyQueue
