"""The jobs this worker has taken and whose end is not yet in Redis. Safe to use from every thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from rq.executions import Execution

from .claimed import Claimed


class ActiveJobs:
    """Taken jobs, until the cycle ends them; then ending jobs, until Redis knows."""

    def __init__(self) -> None:
        #: What RQ calls the worker's executions, by their ids.
        self.executions: dict[str, Execution] = {}
        #: Whether a job was dropped since somebody last looked. Should it still be ours in Redis, it has to go back.
        self.dropped = False
        self._lock = threading.Lock()
        self._active: dict[str, Claimed] = {}
        self._ending: dict[str, Claimed] = {}

    def __len__(self) -> int:
        return len(self._active)

    def add(self, jobs: Iterable[Claimed]) -> None:
        """Taken. A job that Redis gave out twice, having lost the first time, is active under its newer execution."""
        with self._lock:
            for claimed in jobs:
                former = self._active.get(claimed.id)
                if former is not None:
                    former.successor = claimed
                self._active[claimed.id] = claimed
                self.executions[claimed.execution.id] = claimed.execution

    def ending(self, claimed: Claimed) -> None:
        """The cycle has ended it."""
        with self._lock:
            if self._active.get(claimed.id) is claimed:
                del self._active[claimed.id]
            self._ending[claimed.execution.id] = claimed

    def ended(self, claimed: Claimed) -> None:
        """Redis knows, or the job is another worker's now."""
        with self._lock:
            if self._active.get(claimed.id) is claimed:
                del self._active[claimed.id]
            self._ending.pop(claimed.execution.id, None)
            self.executions.pop(claimed.execution.id, None)

    def get(self, id: str) -> Claimed | None:
        """The active job of this id."""
        return self._active.get(id)

    def newest(self, claimed: Claimed) -> Claimed | None:
        """The claim under which the job is active now, if it has been from this claim on."""
        while claimed.successor is not None:
            claimed = claimed.successor
        return claimed if self._active.get(claimed.id) is claimed else None

    def of_execution(self, execution: str) -> Claimed | None:
        """The active job of this execution id."""
        found = self.executions.get(execution)
        claimed = self._active.get(found.job_id) if found is not None else None
        return claimed if claimed is not None and claimed.execution.id == execution else None

    def snapshot(self) -> list[Claimed]:
        """The active jobs, oldest first."""
        with self._lock:
            return list(self._active.values())

    def known(self) -> list[str]:
        """Ids of active and of ending jobs."""
        with self._lock:
            return [*self._active, *(claimed.id for claimed in self._ending.values())]

    def expired(self, now: float) -> list[Claimed]:
        """Active jobs whose RQ timeout has struck by ``now`` (time.monotonic()); each is returned once."""
        with self._lock:
            due = [
                claimed for claimed in self._active.values() if claimed.expires is not None and claimed.expires <= now
            ]
            for claimed in due:
                claimed.expires = None
        return due
