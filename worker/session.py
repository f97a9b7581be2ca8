"""A session as its owner holds it in memory: what Redis has, and where its cells are."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tokenloom.schemas.generation import Generation
from tokenloom.schemas.log import ID_MASK

if TYPE_CHECKING:
    from .step import Step
    from .waiting import Waiting

#: ``damaged``: Redis holds what no worker has written, and nothing is written to it.
State = Literal["", "open", "closed", "damaged"]


@dataclass(slots=True, eq=False)
class Session:
    """One owned session.

    ``log`` holds the committed log's words, token ids with their flags (see tokenloom.schemas.log), and nothing else:
    what is computed and not committed yet, only the step knows that computed it.
    ``sequence`` is the engine's number while cells are resident; how many of the log's tokens they hold, only the
    engine knows. ``epoch`` fences every write. ``waiting`` are its jobs in order, ``running`` the step at work, which
    is no longer in ``waiting``. ``writer`` is the job that last changed the log.
    """

    id: str
    epoch: int
    state: State = ""
    model: str = ""
    seed: int = 0
    defaults: Generation | None = None
    parent: str | None = None
    forked_at: int = 0
    made_by: str | None = None
    writer: str = ""
    log: array[int] = field(default_factory=lambda: array("I"))
    sequence: int | None = None
    waiting: deque[Waiting] = field(default_factory=deque)
    running: Step | None = None
    used: float = 0.0

    @property
    def length(self) -> int:
        return len(self.log)

    def ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """Token ids of the log's slice."""
        return [word & ID_MASK for word in self.log[start:end]]

    @property
    def working(self) -> bool:
        """Whether a step runs here that wants cells. One that has ended only waits for its commit."""
        return self.running is not None and self.running.reason is None

    @property
    def busy(self) -> bool:
        return self.running is not None or bool(self.waiting)
