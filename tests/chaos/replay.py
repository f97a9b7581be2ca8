"""The undisturbed run: one worker, left alone on a server of its own, is given the jobs of a disturbed run again.

What time decided there is repeated as it was decided, so that everything after it has the same log to go on from: a
step that was cut short runs to its own end here, is compared as a beginning, and is then cut back by a rewind; one that
ended before it began is left out; deadlines are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import redis as redis_py

from chaos.folding import Folded, fold
from chaos.history import History, Job, Reference
from chaos.recorder import Recorder
from tokenloom.producer import Client
from tokenloom.schemas import Request
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

REQUESTS: Mapping[str, type[Request]] = {
    "open": OpenRequest,
    "step": StepRequest,
    "clone": CloneRequest,
    "rewind": RewindRequest,
    "close": CloseRequest,
}
#: Jobs enqueued before the next are, so that no line in the worker grows without bound.
AT_ONCE = 2000


def script(history: History, folded: Folded) -> Iterator[Job]:
    """The jobs to run, in an order that keeps that of every session."""
    for job in history.jobs:
        step = folded.steps.get(job["id"])
        short = step is not None and step.reason in ("cancelled", "timeout")
        if step is not None and short and step.appended is None and not step.tokens:
            continue
        yield {name: value for name, value in job.items() if name not in ("deadline", "expect")}
        if step is not None and short:
            yield {"id": f"cut-{job['id']}", "op": "rewind", "session": job["session"], "to": step.length}


def request_of(job: Job) -> Request:
    """The request that a diary's line describes."""
    fields = {name: value for name, value in job.items() if name not in ("id", "op")}
    return REQUESTS[job["op"]].model_validate(fields)


def replay(history: History, folder: Path, settings: Mapping[str, Any], patience: float) -> Reference:
    """Run the jobs of ``history`` and say what they did. TimeoutError when that takes over ``patience`` seconds."""
    jobs = list(script(history, fold(history)))
    server = ValkeyServer(appendonly="no")
    calm = {**settings, "fake_seconds": 0, "closed_ttl": 1 << 20, "max_waiting_per_session": 1 << 16}
    worker = WorkerProcess(server.url, folder / "calm.log", name="calm", settings=calm)
    try:
        server.start()
        worker.start()
        with Client(server.url) as client:
            until = time.monotonic() + patience
            for start in range(0, len(jobs), AT_ONCE):
                part = jobs[start : start + AT_ONCE]
                for job in part:
                    client._office.place(request_of(job), {}, job["id"])
                _wait(client.connection, [job["id"] for job in part], until)
        return _reference(server.url, jobs)
    finally:
        worker.kill()
        server.close()


def _wait(redis: redis_py.Redis, ids: list[str], until: float) -> None:
    left = ids
    while left:
        with redis.pipeline(transaction=False) as pipe:
            for id in left:
                pipe.hget(f"rq:job:{id}", "status")
            left = [id for id, status in zip(left, pipe.execute(), strict=True) if status in (b"queued", b"started")]
        if left and time.monotonic() > until:
            raise TimeoutError(f"the undisturbed run has not done {len(left)} jobs: {left[:5]}")
        time.sleep(0.2 if left else 0)


def _reference(url: str, jobs: list[Job]) -> Reference:
    recorder = Recorder(url, Path("nowhere"), 0)
    for job in jobs:
        recorder.history.jobs.append(job)
        for session in [job["session"], *job.get("targets", ())]:
            recorder.follow(session)
    history = recorder.finish(started=False)
    folded = fold(history)
    if folded.violations:
        raise AssertionError(f"the undisturbed run itself is wrong: {folded.violations[:5]}")
    steps = {
        id: {"tokens": step.tokens, "text": step.text, "reason": step.reason, "error": step.error}
        for id, step in folded.steps.items()
    }
    return Reference(steps, folded.errors, history.logs)
