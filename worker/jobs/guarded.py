"""RQ's Job, disarmed: nothing that a producer wrote into a job is ever imported or called unless it is on the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, cast

from redis.client import Pipeline
from rq.job import Job, JobStatus


class GuardedJob(Job):
    """A job whose function cannot be run, and whose callbacks exist only if their names are allowed."""

    allowed: ClassVar[frozenset[str]] = frozenset()

    def callback_names(self) -> dict[str, str]:
        """The callbacks the job brings: which one -> its name."""
        named = {
            "success_callback": self._success_callback_name,
            "failure_callback": self._failure_callback_name,
            "stopped_callback": self._stopped_callback_name,
        }
        return {which: name for which, name in named.items() if name}

    @property
    def success_callback(self) -> Callable[..., Any] | None:
        return cast("Callable[..., Any] | None", super().success_callback) if self._may("success_callback") else None

    @property
    def failure_callback(self) -> Callable[..., Any] | None:
        return cast("Callable[..., Any] | None", super().failure_callback) if self._may("failure_callback") else None

    @property
    def stopped_callback(self) -> Callable[..., Any] | None:
        return super().stopped_callback if self._may("stopped_callback") else None

    def set_status(self, status: JobStatus, pipeline: Pipeline | None = None) -> None:
        """RQ's, but never on its own: RQ marks a retry as scheduled ahead of the transaction that schedules it, which
        writes the status again. In between, a killed worker would lose the job.
        """
        self._status = status
        if pipeline is not None:
            super().set_status(status, pipeline)

    @property
    def func(self) -> NoReturn:
        raise RuntimeError(f"job {self.id}: a tokenloom worker imports no function of a job")

    def perform(self) -> NoReturn:
        raise RuntimeError(f"job {self.id}: a tokenloom worker runs no function of a job")

    def _may(self, which: str) -> bool:
        return self.callback_names().get(which) in self.allowed


def guarded(base: type[Job], allowed: frozenset[str]) -> type[GuardedJob]:
    """The user's job class with the guard in front. ``allowed``: names of callbacks that jobs may bring."""
    bases = (GuardedJob,) if base is Job else (GuardedJob, base)
    return cast(type[GuardedJob], type(f"Guarded{base.__name__}", bases, {"allowed": allowed, "__module__": __name__}))
