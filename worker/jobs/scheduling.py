"""RQ's scheduler beside the worker, started as a fresh process."""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

from multiprocessing import get_context
from typing import Any

from rq.logutils import setup_loghandlers
from rq.scheduler import RQScheduler, run

from ..logs import use
from ..settings import load_settings


def _run(scheduler: RQScheduler, level: Any, date_format: str, log_format: str) -> None:
    use(load_settings().log, "scheduler")
    setup_loghandlers(level=level, date_format=date_format, log_format=log_format, name="rq.scheduler")
    run(scheduler)


class SpawnedScheduler(RQScheduler):
    """RQScheduler whose ``start`` spawns."""

    def __init__(self, queues: Any, connection: Any, **options: Any) -> None:
        super().__init__(queues, connection, **options)
        self._logging = (options.get("logging_level"), options.get("date_format", ""), options.get("log_format", ""))

    def begin(self, burst: bool) -> None:
        """Take what locks are free, then enqueue what is due (burst) or start."""
        self.acquire_locks()
        if not self.acquired_locks:
            return
        if burst:
            try:
                self.register_birth()
                self.enqueue_scheduled_jobs()
            finally:
                self.release_locks()
                self.register_death()
        else:
            self.start()

    def start(self) -> Any:
        """Run in a process of its own. A fork would copy the engine, and locks that other threads hold."""
        self._status = self.Status.STARTED
        self._connection = None
        self._process = None
        process: Any = get_context("spawn").Process(target=_run, args=(self, *self._logging), name="Scheduler")
        process.start()
        self._process = process
        return process
