"""How a job ended, put together from what the session and RQ remember of it."""

from __future__ import annotations

import zlib
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.codec import CodecError, decode
from tokenloom.schemas.errors import ErrorBody, TokenloomError, body_of_text
from tokenloom.schemas.jobs import HOW_TO_RUN
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.records import RESULTS, JobRecord, StepRecord, StepResult
from tokenloom.schemas.validate import decode_record, parse

from .errors import NoSuchStep, StepFailed
from .talk import Ask, Sleep, Talk, patient

#: RQ's statuses of a job that is over.
OVER = ("finished", "failed", "stopped", "canceled")

#: RQ's Result.Type.SUCCESSFUL as it is stored.
SUCCESSFUL = b"1"

#: How often a job that is over is looked at again, a tenth of a second apart, before it counts as without a result.
SECOND_LOOKS = 6

#: What an RQ worker of another kind leaves in a job it could not load.
PICKLE_SIGNS = ("DeserializationError", "UnpicklingError", "pickle")


@dataclass(frozen=True, slots=True)
class Ending:
    """``result`` or ``error``, or both for a step that had generated something before it failed."""

    result: Versioned | None = None
    error: ErrorBody | None = None

    def value(self, operation: str) -> Versioned:
        """The result; raises the error otherwise, for a step as StepFailed."""
        if self.error is not None:
            if operation == "step":
                raise StepFailed.of_body(self.error, self.result if isinstance(self.result, StepResult) else None)
            raise TokenloomError.from_body(self.error)
        assert self.result is not None
        return self.result


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which job: of what operation, in what session, under what id."""

    operation: str
    session: str
    id: str


def ask_ending(keys: Keys, job: JobRef, *, where: str, patience: float) -> Talk[Ending | None]:
    """How the job ended; None while it has not. One round trip.

    The session's record comes first, since it is written with the last tokens; an error in it counts only once RQ has
    no retry left. Raises NoSuchStep when nobody remembers the job.
    """
    ask = Ask(
        (
            ("HGET", keys.steps(job.session), job.id),
            ("HGET", f"rq:job:{job.id}", "status"),
            ("XREVRANGE", f"rq:results:{job.id}", "+", "-", "COUNT", 1),
        )
    )
    for _ in range(SECOND_LOOKS):
        record_data, status_data, results = yield from patient(ask, where=where, patience=patience)
        record = decode_record(record_data) if record_data else None
        status = status_data.decode() if status_data else None
        over = status is None or status in OVER
        if record is not None and (ending := _of_record(record, retryable=not over)) is not None:
            return ending
        if not over:
            return None
        if status == "canceled":
            return Ending(error=ErrorBody(code="stopped", message="the job was cancelled in RQ before it ran"))
        if results and _belongs(results[0][1], status) and (ending := _of_rq(job, results[0][1])) is not None:
            return ending
        if status is None:
            raise NoSuchStep(
                f"{job.operation} {job.id} of session {job.session} is not known: its result expired, "
                "or it was deleted or never enqueued"
            )
        # The status may be a moment ahead of the result.
        yield Sleep(0.1)
    return Ending(error=ErrorBody(code="internal", message=f"RQ says {status} and keeps no result"))


def _belongs(fields: dict[bytes, bytes], status: str | None) -> bool:
    """Whether an entry of RQ's results is of the run that led to ``status``, and not of one before it was requeued."""
    return status is None or (fields.get(b"type") == SUCCESSFUL) == (status == "finished")


def _of_record(record: StepRecord | JobRecord, *, retryable: bool) -> Ending | None:
    if isinstance(record, StepRecord) and record.reason is None:
        return None
    if record.error is not None or (isinstance(record, StepRecord) and record.reason == "error"):
        if retryable:
            return None
        error = record.error or ErrorBody(code="internal", message="the step failed")
        return Ending(result=record.result, error=error)
    return Ending(result=record.result) if record.result is not None else None


def _of_rq(job: JobRef, fields: dict[bytes, bytes]) -> Ending | None:
    """From an entry of RQ's results stream; None when there is nothing to tell."""
    if packed := fields.get(b"return_value"):
        try:
            return Ending(result=parse(RESULTS[job.operation], decode(b64decode(packed))))
        except (CodecError, TokenloomError) as error:
            return Ending(error=ErrorBody(code="internal", message=f"the job's result cannot be read: {error}"))
    if packed := fields.get(b"exc_string"):
        return Ending(error=error_of_traceback(zlib.decompress(b64decode(packed)).decode("utf-8", "replace")))
    return None


def error_of_traceback(text: str) -> ErrorBody:
    """The error that a traceback ends with: ours as it was written, any other as ``internal`` with its last line."""
    body = body_of_text(text)
    if body is not None:
        return body
    last: Any = next((line for line in reversed(text.splitlines()) if line.strip()), "the job failed")
    if any(sign in text for sign in PICKLE_SIGNS):
        last = f"{last}: the job was taken by an RQ worker without our serializer; run workers as `{HOW_TO_RUN}`"
    return ErrorBody(code="internal", message=last.strip())
