"""Jobs that workers died on: one more death would prove them guilty.

A suspect runs alone, so that no other is blamed for its deaths, and is named in Redis beforehand, so that it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .step import Step
from .store import Store
from .waiting import Waiting


class Suspects:
    """Who is one, for one worker."""

    def __init__(self, store: Store, worker: str, max_deaths: int) -> None:
        self._store = store
        self._worker = worker
        self._enough = max(1, max_deaths - 1)

    def include(self, job: Step | Waiting) -> bool:
        """Whether the job is to run alone."""
        return job.suspicion >= self._enough

    def among(self, running: Sequence[Step]) -> list[Step]:
        """The suspects of several steps."""
        return [step for step in running if step.claimed.deaths and self.include(step)]

    @contextmanager
    def named(self, job: Step | Waiting | None) -> Iterator[None]:
        """Name the suspect, None for nobody, to whoever finds this worker dead meanwhile.

        An exception leaves it named.
        """
        if job is not None:
            self._store.mark_suspect(self._worker, job.id)
        yield
        if job is not None:
            self._store.mark_suspect(self._worker, None)
