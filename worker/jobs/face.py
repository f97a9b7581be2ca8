"""What the queue side calls of the cycle. One thread, the worker's main one, calls all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from .claimed import Claimed, Interruption


class CycleFace(Protocol):
    """The cycle, as BatchWorker knows it."""

    @property
    def active(self) -> int:
        """Jobs taken and not ended."""

    @property
    def room(self) -> int:
        """How many more jobs may be taken now."""

    def restore(self) -> None:
        """After birth: read the persisted session table, and rebuild cells if that is set."""

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Accept jobs, in the order in which they were queued; those that are ``stopped``, to end them soon."""

    def interrupt(self, job: str, why: Interruption) -> None:
        """End a job soon."""

    def turn(self) -> bool:
        """One cycle: plan, launch a forward, commit what the last one gave. False when there was nothing to do."""

    @property
    def in_the_air(self) -> bool:
        """Whether a forward runs, so that ``turn`` would wait for it."""

    def admit(self) -> bool:
        """Begin what may begin, also while a forward runs. True when there was anything."""

    def stop_accepting(self) -> None:
        """Begin nothing new."""

    def surrender(self) -> list[Claimed]:
        """Persist, and return the jobs that are not finished."""

    def forget(self, sessions: Iterable[str] | None = None) -> None:
        """Drop these sessions (None: all) and their jobs, and touch nothing in Redis."""

    def reborn(self, incarnation: str) -> None:
        """Own sessions as this incarnation of the worker from now on. Called after ``forget(None)``."""

    def stats(self) -> Mapping[str, int | float | str]:
        """Figures for the worker's hash."""

    def close(self) -> None:
        """Free the engine."""
