"""Raw jobs that mean harm or nonsense: each fails alone with its error, and the streams beside them go on."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgpack
import pytest
from redis import Redis
from rq.job import Job
from rq.registry import FailedJobRegistry

from e2e.seen import QUICK, Reader, check_stream, events_of, tokens_of, wait_until
from tokenloom.producer import Client
from tokenloom.schemas import FinishedEvent, MsgpackSerializer
from tokenloom.schemas.events import ErrorEvent
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

STEP = "tokenloom.schemas.jobs.step"


class Detonator:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def enqueue_raw(redis: Redis, id: str, data: bytes, **fields: str | bytes) -> None:
    """What a producer in any language sends."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with redis.pipeline() as pipe:
        pipe.sadd("rq:queues", "rq:queue:steps")
        given: dict[Any, Any] = {
            "data": data, "origin": "steps", "status": "queued", "created_at": now, "enqueued_at": now,
            "timeout": 60, **fields,
        }  # fmt: skip
        pipe.hset(f"rq:job:{id}", mapping=given)
        pipe.rpush("rq:queue:steps", id)
        pipe.execute()


def packed(function: str, **kwargs: Any) -> bytes:
    data: bytes = msgpack.packb([function, None, [], kwargs])
    return data


def step(session: str = "victim", **fields: Any) -> bytes:
    return packed(STEP, **{"v": 1, "session": session, "text": "hi", "generation": {"max_tokens": 1}, **fields})


def hostile_jobs(traps: Path) -> dict[str, tuple[bytes, dict[str, str | bytes], str]]:
    """id -> data, further fields of the job's hash, and what its error must say."""
    touch = f"touch {traps}/system"
    return {
        "system": (packed("os.system", command=touch, session="victim"), {}, "os.system"),
        "system-args": (msgpack.packb(["os.system", None, [touch], {}]), {}, "arguments are given by name only"),
        "pickle": (pickle.dumps(("os.system", None, (touch,), {})), {}, "pickle"),
        "pickle-bomb": (zlib.compress(pickle.dumps(Detonator(traps / "pickle"))), {}, "pickle"),
        "zlib-bomb": (zlib.compress(bytes(1 << 28), 9), {}, "larger than"),
        "version": (step(v=99), {}, "99"),
        "foreign-callback": (step(), {"success_callback_name": "os.getcwd"}, "os.getcwd"),
        "failure-callback": (step(), {"failure_callback_name": "os.abort"}, "os.abort"),
        "unknown-field": (step(temprature=1), {}, "temprature"),
        "bad-type": (step(tokens="no", text=None), {}, "tokens"),
        "huge-token": (step(tokens=[1 << 23], text=None), {}, "vocabulary"),
        "bad-session": (step(session="a b{c}"), {}, "session"),
        "truncated": (step()[:-3], {}, "cut short"),
        "empty": (b"", {}, "missing"),
        "deep": (b"\x91" * 5000 + b"\xc0", {}, "nested"),
        "not-four": (msgpack.packb([STEP]), {}, "[function, null, args, kwargs]"),
        "bad-timeout": (step(), {"timeout": "soon"}, ""),
        "bad-date": (step(), {"created_at": "yesterday"}, ""),
        "lying-meta": (step(), {"meta": msgpack.packb({"sessions": ["s0"]})}, "meta.sessions"),
        "bad-meta": (step(), {"meta": b"\xc1\xc1"}, ""),
    }


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """Where anything that ran leaves a file."""
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


def test_hostile_jobs_fail_alone_while_streams_go_on(
    client: Client, redis: Redis, make_worker: MakeWorker, traps: Path
) -> None:
    worker = make_worker(engine="fake", fake_seconds=0.01, **QUICK)
    for name in ("s0", "s1", "victim"):
        client.open(name, seed=1)
    readers = [Reader(client.session(name).step("go", max_tokens=150, ignore_eos=True)) for name in ("s0", "s1")]
    wait_until(lambda: all(reader.tokens for reader in readers), what="running streams")
    pid = worker.pid
    jobs = hostile_jobs(traps)
    for id, (data, fields, _) in jobs.items():
        enqueue_raw(redis, id, data, **fields)
    failed = FailedJobRegistry("steps", connection=redis, serializer=MsgpackSerializer)
    fine = {"bad-timeout", "bad-date", "bad-meta"}  # RQ's own to read; harmless either way, as long as they end
    expected = set(jobs) - fine

    def ended() -> bool:
        return expected <= set(failed.get_job_ids()) and not redis.llen("rq:queue:steps")

    wait_until(ended, what="every hostile job failed")
    for id in expected:
        result = Job(id, connection=redis, serializer=MsgpackSerializer).latest_result()
        assert result is not None, id
        assert jobs[id][2] in str(result.exc_string), f"{id}: {result.exc_string}"
    assert list(traps.iterdir()) == []
    assert {tuple(tokens_of(reader.done())) for reader in readers} == {tuple(tokens_of(readers[0].events))}
    assert worker.pid == pid
    assert worker.process is not None
    assert worker.process.poll() is None
    assert "unexpected error" not in worker.output()
    check_stream(redis, "s0")


def test_a_refused_job_says_so_on_its_sessions_channel(
    client: Client, redis: Redis, make_worker: MakeWorker, traps: Path
) -> None:
    make_worker(engine="fake", **QUICK)
    client.open("victim", seed=1)
    jobs = hostile_jobs(traps)
    named = ["version", "foreign-callback", "unknown-field", "bad-type", "huge-token"]
    for id in [*named, "system"]:
        enqueue_raw(redis, id, jobs[id][0], **jobs[id][1])
    assert client.session("victim").step("hello", max_tokens=2, ignore_eos=True).result(20).usage.generated == 2
    events = events_of(redis, "victim")
    for id in named:
        (event,) = [event for event in events if event.job == id]
        assert isinstance(event, FinishedEvent), id
        assert event.reason == "error"
        assert event.error is not None
        assert jobs[id][2] in event.error.message, id
    (event,) = [event for event in events if event.job == "system"]
    assert isinstance(event, ErrorEvent)
    assert event.error.code == "unknown_job"
    check_stream(redis, "victim")


def test_junk_in_the_queue_is_dropped(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    make_worker(engine="fake", **QUICK)
    redis.hset("rq:job:done", mapping={"status": "finished", "origin": "steps"})
    redis.set("rq:job:text", "no hash")
    for junk in ("missing", "done", "text", "with space", b"\xff\xfe", "x" * 100_000):
        redis.rpush("rq:queue:steps", junk)
    client.open("s")
    assert client.session("s").step("hello", max_tokens=2, ignore_eos=True).result(20).usage.generated == 2
    assert redis.hget("rq:job:done", "status") == b"finished"


def test_a_step_that_kills_its_worker_is_failed_as_poison_and_the_others_finish(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    worker = make_worker(engine="fake", fake_kill_token=258, max_deaths=2, fake_seconds=0.003, **QUICK)
    for name in ("s0", "s1", "killer"):
        client.open(name, seed=1)
    readers = [Reader(client.session(name).step("go", max_tokens=300, ignore_eos=True)) for name in ("s0", "s1")]
    killer = client.session("killer").step(tokens=[97, 258], max_tokens=2, step_id="killer")

    def died_or_failed() -> str:
        if killer.job.get_status().value == "failed":
            return "failed"
        return "died" if worker.process is not None and worker.process.poll() is not None else ""

    deaths = 0
    while wait_until(died_or_failed) == "died":
        deaths += 1
        worker.start()
    assert deaths == 2
    result = killer.job.latest_result()
    assert result is not None
    assert "[poison] 2 workers died while this job was running" in str(result.exc_string)
    for reader in readers:
        assert len(tokens_of(reader.done())) == 300
    check_stream(redis, "s0")
    check_stream(redis, "s1")
