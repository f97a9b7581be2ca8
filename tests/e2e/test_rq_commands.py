"""What people do to jobs and workers with RQ's own commands, against the real worker."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

import pytest
from redis import Redis
from rq import Worker
from rq.command import send_stop_job_command
from rq.job import Job

from e2e.seen import QUICK, Reader, check_stream, log_of, wait_until
from tokenloom.producer import Client, Stopped
from tokenloom.schemas import FinishedEvent, MsgpackSerializer
from worker_process import WorkerProcess, rq_command

MakeWorker = Callable[..., WorkerProcess]

SLOW = {"engine": "fake", "fake_seconds": 0.01, **QUICK}


def rq(command: str, url: str, *arguments: str) -> str:
    """What an rq command prints."""
    done = subprocess.run(
        [rq_command(), command, "-u", url, *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


def job_of(redis: Redis, id: str) -> Job:
    return Job.fetch(id, connection=redis, serializer=MsgpackSerializer)


def stream(client: Client, session: str, tokens: int = 100) -> Reader:
    """A running step, its first token seen."""
    client.open(session, seed=1, wait=False)
    reader = Reader(
        client.session(session).step("go", max_tokens=tokens, ignore_eos=True, step_id=f"{session}-step"), tokens
    )
    wait_until(lambda: reader.tokens, what="the first token")
    return reader


def end_of(reader: Reader) -> FinishedEvent:
    end = reader.done()[-1]
    assert isinstance(end, FinishedEvent)
    return end


def test_rq_info_shows_the_queue_and_a_busy_worker(client: Client, redis_url: str, make_worker: MakeWorker) -> None:
    make_worker(name="w1", max_claimed=1, **SLOW)
    reader = stream(client, "s", 4000)
    waiting = client.session("s").step(max_tokens=1)
    busy = re.compile(r"queue steps 1, 1 executing(.|\n)*worker w1 \(.*\) busy steps")
    wait_until(lambda: busy.search(rq("info", redis_url, "--raw")), what="a busy worker and a job in the queue")
    reader.step.cancel()
    assert end_of(reader).reason == "cancelled"
    waiting.result(10)
    wait_until(lambda: re.search(r"worker w1 \(.*\) idle", rq("info", redis_url, "--raw")), what="an idle worker")
    worker = Worker.find_by_key("rq:worker:w1", connection=client.connection, serializer=MsgpackSerializer)
    assert worker is not None
    assert worker.successful_job_count == 3


def test_rq_info_of_a_running_worker_disturbs_nothing(
    client: Client, redis: Redis, redis_url: str, make_worker: MakeWorker
) -> None:
    make_worker(name="w1", **SLOW)
    reader = stream(client, "s", 150)
    for options in (["-R"], ["-W"], ["-Q"]):
        rq("info", redis_url, *options)
    assert end_of(reader).reason == "length"
    assert len(check_stream(redis, "s")) == 153


def test_stop_job_ends_one_of_several_running_steps(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(**SLOW)
    readers = [stream(client, f"s{number}", 150) for number in range(3)]
    send_stop_job_command(redis, "s1-step", serializer=MsgpackSerializer)
    end = end_of(readers[1])
    assert end.reason == "cancelled"
    assert end.error is not None
    assert end.error.code == "stopped"
    assert [end_of(readers[number]).reason for number in (0, 2)] == ["length", "length"]
    wait_until(lambda: job_of(redis, "s1-step").get_status().value == "stopped", what="status stopped")
    wait_until(lambda: job_of(redis, "s2-step").get_status().value == "finished", what="status finished")
    kept = log_of(redis, "s1")
    check_stream(redis, "s1")
    assert client.session("s1").step(max_tokens=1, at_length=len(kept)).result(10).reason == "length"
    with pytest.raises(Stopped):
        readers[1].step.result(5)


def test_job_cancel_of_a_running_step_ends_it(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(**SLOW)
    reader, other = stream(client, "s", 3000), stream(client, "t", 150)
    job_of(redis, "s-step").cancel()
    end = end_of(reader)
    assert end.reason == "cancelled"
    assert end.length < 3000
    assert end_of(other).reason == "length"
    wait_until(lambda: not redis.zcard("rq:wip:steps"), what="no execution left")
    assert job_of(redis, "s-step").get_status().value == "canceled"
    assert client.session("s").step(max_tokens=1).result(10).reason == "length"


def test_job_cancel_of_a_queued_step_means_it_never_runs(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    client.open("s", wait=False)
    client.session("s").step("never", max_tokens=5, step_id="never")
    after = client.session("s").step("after", max_tokens=5)
    job_of(redis, "never").cancel()
    make_worker(**SLOW)
    assert after.result(10).usage.appended == len(log_of(redis, "s")) - 5
    assert not [event for event in check_stream(redis, "s") if event.job == "never"]
    assert job_of(redis, "never").get_status().value == "canceled"


def test_job_cancel_of_a_claimed_step_that_waits_means_it_appends_nothing(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    make_worker(**SLOW)
    reader = stream(client, "s", 150)
    client.session("s").step("never", max_tokens=5, step_id="never")
    wait_until(lambda: job_of(redis, "never").get_status().value == "started", what="the claim")
    job_of(redis, "never").cancel()
    assert end_of(reader).reason == "length"
    after = client.session("s").step("after", max_tokens=5).result(10)
    assert after.usage.appended == len(log_of(redis, "s")) - end_of(reader).length - 5


def test_deleting_a_running_job_ends_its_step(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(**SLOW)
    reader = stream(client, "s", 3000)
    job_of(redis, "s-step").delete()
    assert end_of(reader).reason == "cancelled"
    assert client.session("s").step(max_tokens=1).result(10).reason == "length"
    assert not redis.exists("rq:job:s-step")


def test_suspended_workers_finish_what_runs_and_take_nothing_new(
    client: Client, redis: Redis, redis_url: str, make_worker: MakeWorker
) -> None:
    make_worker(name="w1", **SLOW)
    reader = stream(client, "s", 100)
    rq("suspend", redis_url)
    client.open("t", wait=False)
    held = client.session("t").step("held", max_tokens=3)
    assert end_of(reader).reason == "length"
    time.sleep(0.5)
    assert redis.lrange("rq:queue:steps", -1, -1) == [held.id.encode()]
    wait_until(lambda: redis.hget("rq:worker:w1", "state") == b"suspended", what="state suspended")
    rq("resume", redis_url)
    assert held.result(10).reason == "length"


def test_burst_ends_when_the_queue_is_empty(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    client.open("s", wait=False)
    steps = [client.session("s").step(f"part {number}", max_tokens=10) for number in range(5)]
    worker = make_worker(options=("--burst",), start=False, **SLOW)
    worker.start(born=False)
    assert worker.wait(20) == 0
    assert all(step.job.get_status().value == "finished" for step in steps)
    check_stream(redis, "s")
    assert not redis.exists("rq:workers")


def test_max_jobs_takes_that_many_and_leaves_the_rest(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    client.open("s", wait=False)
    steps = [client.session("s").step(f"part {number}", max_tokens=3) for number in range(5)]
    worker = make_worker(options=("--max-jobs", "3"), start=False, **SLOW)
    worker.start(born=False)
    assert worker.wait(20) == 0
    statuses = [step.job.get_status().value for step in steps]
    assert statuses == ["finished", "finished", "queued", "queued", "queued"]
    worker.start(born=False)
    assert worker.wait(20) == 0
    assert [step.job.get_status().value for step in steps] == ["finished"] * 5
    check_stream(redis, "s")


def test_a_second_worker_of_a_living_name_is_refused(client: Client, make_worker: MakeWorker) -> None:
    make_worker(name="w1", **SLOW)
    reader = stream(client, "s", 100)
    second = make_worker(name="w1", start=False, **SLOW)
    second.start(born=False)
    assert second.wait(20) != 0
    assert "There exists an active worker named 'w1' already" in second.output()
    assert end_of(reader).reason == "length"
