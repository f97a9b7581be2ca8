"""A job waiting for its turn in a session."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.schemas.records import JobRecord, StepRecord

from .jobs.claimed import Claimed, Interruption


@dataclass(slots=True, eq=False)
class Waiting:
    """A claimed job, what Redis remembers of a former run of it, and whether it has been asked to end."""

    claimed: Claimed
    record: StepRecord | JobRecord | None = None
    cancelled: bool = False
    interrupted: Interruption | None = None

    @property
    def id(self) -> str:
        return self.claimed.id

    @property
    def names(self) -> tuple[str, ...]:
        """The sessions in whose lines it stands, the one it is queued under first."""
        if self.claimed.request is not None:
            return self.claimed.request.sessions
        return (self.claimed.session or "",)

    @property
    def tenant(self) -> str:
        """Whose share it counts against."""
        request = self.claimed.request
        return (request.tenant if request is not None else None) or ""

    @property
    def suspicion(self) -> int:
        """Workers that died on this job since it last got on."""
        return self.claimed.deaths - (self.record.deaths if self.record is not None else 0)

    @property
    def settled(self) -> bool:
        """Whether a former run ended the job and only the queue does not know yet.

        An ended record also stands where RQ retries a failed job, or a person requeues it: then nobody died since.
        """
        record = self.record
        if record is None or (isinstance(record, StepRecord) and record.reason is None):
            return False
        return record.error is None or self.claimed.deaths > record.deaths
