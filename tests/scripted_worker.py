"""A BatchWorker whose cycle does what each job's text says, to test the queue side without an engine.

Every turn counts once for each job. ``text`` of a step: "fail", "hang", "raise" (a bug in the cycle), "exit" (the
process is gone), "slow" (a turn of 0.2 s), or anything else; it finishes after ``max_tokens`` turns. Run it as
``rq worker -w scripted_worker.ScriptedWorker ...`` with this folder on PYTHONPATH.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from redis import Redis

from tokenloom.schemas import StepRequest, StepResult, TokenloomError, Usage
from tokenloom.worker.batch_worker import BatchWorker
from tokenloom.worker.jobs.claimed import Claimed, Interruption, Outcomes
from tokenloom.worker.jobs.face import CycleFace


class ScriptedCycle:
    """Jobs and how many turns each has had; ``log`` in Redis lists what began, as worker:session:job."""

    def __init__(self, connection: Redis, outcomes: Outcomes, worker: str, most: int = 64) -> None:
        self.connection = connection
        self.outcomes = outcomes
        self.worker = worker
        self.most = most
        self.jobs: dict[str, Claimed] = {}
        self.turns: dict[str, int] = {}
        self.why: dict[str, Interruption] = {}
        self.forgotten = 0
        self.incarnations: list[str] = []
        self.accepting = True

    @property
    def active(self) -> int:
        return len(self.jobs)

    @property
    def room(self) -> int:
        return self.most - len(self.jobs)

    def restore(self) -> None:
        pass

    def take(self, claimed: Sequence[Claimed]) -> None:
        for job in claimed:
            self.connection.rpush("began", f"{self.worker}:{job.session}:{job.id}")
            if job.request is None:
                assert job.refusal is not None
                self.outcomes.fail(job, job.refusal)
            else:
                self.jobs[job.id] = job
                self.turns[job.id] = 0
                if job.stopped:
                    self.why[job.id] = "stopped"

    def interrupt(self, job: str, why: Interruption) -> None:
        if job in self.jobs:
            self.why[job] = why

    def turn(self) -> bool:
        if not self.jobs:
            return False
        time.sleep(0.005)
        for id, job in list(self.jobs.items()):
            self.turns[id] += 1
            assert job.request is not None
            text = (job.request.text or "") if isinstance(job.request, StepRequest) else ""
            wanted = job.request.generation.max_tokens if isinstance(job.request, StepRequest) else 1
            if text == "slow":
                time.sleep(0.2)
            if text == "raise":
                raise RuntimeError("a bug in the cycle")
            if text == "exit":
                os._exit(9)
            if id in self.why:
                self._end(id, TokenloomError.of("stopped", "ended early"), self.why.pop(id))
            elif text == "fail":
                self._end(id, TokenloomError.of("engine", "this step fails"), None)
            elif text != "hang" and self.turns[id] > (wanted or 1):
                self.outcomes.finish(self.jobs.pop(id), result_of(job))
        return True

    @property
    def in_the_air(self) -> bool:
        return False

    def admit(self) -> bool:
        return False

    def _end(self, id: str, error: TokenloomError, why: Interruption | None) -> None:
        self.outcomes.fail(self.jobs.pop(id), error, why)

    def stop_accepting(self) -> None:
        self.accepting = False

    def surrender(self) -> list[Claimed]:
        return list(self.jobs.values())

    def forget(self, sessions: Iterable[str] | None = None) -> None:
        self.forgotten += 1
        for job in self.jobs.values():
            self.outcomes.drop(job)
        self.jobs.clear()

    def reborn(self, incarnation: str) -> None:
        self.incarnations.append(incarnation)

    def stats(self) -> dict[str, int | float | str]:
        return {"active": len(self.jobs)}

    def close(self) -> None:
        pass


def result_of(job: Claimed) -> StepResult:
    return StepResult(
        session=job.session or "",
        step=job.id,
        reason="length",
        tokens=[1],
        text="x",
        length=1,
        usage=Usage(appended=0, generated=1),
    )


class ScriptedWorker(BatchWorker):
    """``cycle`` is the scripted one; ``most``: how many jobs it takes at once.

    ``loading`` names a file that it makes when it would load a model; loading lasts as long as the file exists.
    """

    most = int(os.environ.get("SCRIPTED_MOST", "64"))
    loading = os.environ.get("SCRIPTED_LOADING")

    def open_cycle(self, connection: Redis, outcomes: Outcomes, incarnation: str) -> CycleFace:
        if self.loading is not None:
            gate = Path(self.loading)
            gate.touch()
            while gate.exists():
                time.sleep(0.01)
        return ScriptedCycle(connection, outcomes, self.name, self.most)


def noted_success(job: Any, connection: Redis, result: Any) -> None:
    connection.rpush("callbacks", f"success:{job.id}:{result['session']}")


def noted_failure(job: Any, connection: Redis, kind: Any, value: Any, traceback: Any) -> None:
    connection.rpush("callbacks", f"failure:{job.id}:{kind.__name__}")


def noted_stop(job: Any, connection: Redis) -> None:
    connection.rpush("callbacks", f"stopped:{job.id}")


def noted_exception(job: Any, *exc_info: Any) -> None:
    job.connection.rpush("handled", job.id)
