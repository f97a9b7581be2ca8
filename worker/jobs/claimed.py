"""A job this worker has taken, and what the cycle asks of whoever took it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.requests import Request

if TYPE_CHECKING:
    from rq.executions import Execution
    from rq.job import Job

#: Why a running job must end: RQ's job.cancel() or job.delete(), RQ's job timeout, or RQ's stop-job.
Interruption = Literal["cancelled", "timeout", "stopped"]


@dataclass(slots=True)
class Claimed:
    """One claimed job.

    ``request`` is None when the job could not be understood; ``refusal`` then says why. ``session`` is what the job's
    events go to, if that much could be read. ``epochs`` holds, for every session the job needs, the epoch under which
    this worker owns it, or -1 where it cannot: another live worker owns a clone target, or the session's key holds
    something else than a session. ``deaths`` counts the workers that died while this job was active, and
    ``alone`` is that count as of the last one that had nothing else at work, 0 for none. ``stopped``: a stop-job came
    under an earlier claim, which did not get to it. ``successor`` is a later claim of the same job by this worker, made
    while this one was active. ``timeout`` is RQ's job timeout in seconds, ``expires`` the time.monotonic() at which it
    strikes; None is never. The cycle moves ``expires``: a job that waits its turn has not started.
    """

    job: Job
    execution: Execution
    session: str | None
    request: Request | None
    refusal: TokenloomError | None = None
    epochs: dict[str, int] = field(default_factory=dict)
    deaths: int = 0
    alone: int = 0
    stopped: bool = False
    successor: Claimed | None = None
    timeout: float | None = None
    expires: float | None = None

    @property
    def id(self) -> str:
        return self.job.id


class Outcomes(Protocol):
    """Where the cycle reports how jobs ended. Calls return at once; the work is done on another thread, in order."""

    def finish(self, claimed: Claimed, result: Versioned) -> None:
        """The job succeeded: store its result, run callbacks, enqueue dependents."""

    def fail(self, claimed: Claimed, error: TokenloomError, interruption: Interruption | None = None) -> None:
        """The job failed, or was stopped, timed out: RQ's retry, failure callback and registries apply.

        ``interruption`` tells a stop-job (RQ status `stopped`), a job timeout (failed with JobTimeoutException) and
        RQ's own cancel (status left `canceled`) from an ordinary failure.
        """

    def drop(self, claimed: Claimed) -> None:
        """Another worker has the job now: forget it and touch nothing in Redis."""
