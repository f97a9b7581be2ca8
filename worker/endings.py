"""How jobs end other than by doing what they asked: refused, ended before they began, or ended by a former run."""

from __future__ import annotations

import time

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.errors import ErrorBody, TokenloomError
from tokenloom.schemas.events import ErrorEvent, EventBase, FinishedEvent, FinishReason, Usage
from tokenloom.schemas.records import JobRecord, StepRecord, StepResult
from tokenloom.schemas.requests import StepRequest

from .jobs.claimed import Interruption, Outcomes
from .operations import Proposal, must_be_open
from .session import Session
from .store import Write
from .texts import Texts
from .waiting import Waiting

#: Seconds the keys of a session that is not open live, so that an error can be read from its channel.
UNOPENED_TTL = 600


def raise_if_barred(waiting: Waiting, max_deaths: int) -> None:
    """Refuse a job that could not be understood, has killed too many workers, or is no step and was interrupted.

    What dies with a worker is blamed, and soon runs alone; guilty is only what then dies with one again.
    """
    claimed = waiting.claimed
    if claimed.refusal is not None:
        raise claimed.refusal
    deaths = waiting.suspicion
    if deaths >= max_deaths and (max_deaths == 1 or claimed.alone > claimed.deaths - deaths):
        raise TokenloomError.of(
            "poison",
            f"{deaths} workers died while this job was running on them; it will not be tried again",
            value=deaths,
            limit=f"fewer than {max_deaths} (TOKENLOOM_MAX_DEATHS)",
        )
    if waiting.interrupted is not None and not isinstance(claimed.request, StepRequest):
        raise TokenloomError(interruption_error(waiting.interrupted))


def interruption_error(why: Interruption) -> ErrorBody:
    """What the channel and RQ are told of a job that was ended from outside."""
    if why == "timeout":
        return ErrorBody(code="timeout", message="the job's timeout struck before it was done")
    return ErrorBody(code="stopped", message=f"the job was {'stopped' if why == 'stopped' else 'cancelled'} on request")


def refusal(waiting: Waiting, session: Session, error: TokenloomError, outcomes: Outcomes) -> Proposal:
    """The job ends with an error, on the channel and in RQ; the session stays as it is."""
    now = time.time()
    record: Versioned
    event: EventBase
    if is_step(waiting):
        former = waiting.record if isinstance(waiting.record, StepRecord) else _not_begun(session)
        record = former.model_copy(
            update={"reason": "error", "error": error.body, "ended": now, "deaths": waiting.claimed.deaths}
        )
        event = FinishedEvent(
            session=session.id,
            job=waiting.id,
            at=now,
            reason="error",
            length=session.length,
            usage=Usage(appended=former.appended, generated=former.generated, cached=former.cached),
            error=error.body,
        )
    else:
        request = waiting.claimed.request
        operation = "open" if request is None else request.function.rpartition(".")[2]
        record = JobRecord.model_validate(
            {"operation": operation, "error": error.body, "deaths": waiting.claimed.deaths}
        )
        event = ErrorEvent(session=session.id, job=waiting.id, at=now, error=error.body)
    write = Write(session, waiting.id, record, done=True, events=[event])
    if session.state != "open":
        write.ttl = UNOPENED_TTL
    return Proposal(waiting, [write], end=lambda: outcomes.fail(waiting.claimed, error, waiting.interrupted))


def remembered(waiting: Waiting, outcomes: Outcomes) -> Proposal:
    """A former run ended the job; only RQ does not know yet."""
    record = waiting.record
    assert record is not None
    if record.error is not None:
        error = TokenloomError(record.error)
        return Proposal(waiting, end=lambda: outcomes.fail(waiting.claimed, error))
    result = record.result
    assert result is not None
    return Proposal(waiting, end=lambda: outcomes.finish(waiting.claimed, result))


def ended_before_it_began(
    waiting: Waiting, session: Session, outcomes: Outcomes, fingerprint: str, texts: Texts
) -> Proposal | None:
    """A step asked to end, or past its deadline, while it waited: it appends nothing and runs nothing.

    None when there is nothing of the kind, or when a former run has begun it: then it goes on, and ends with what it
    has.
    """
    request = waiting.claimed.request
    assert isinstance(request, StepRequest)
    reason = _early_reason(waiting, request)
    begun = isinstance(waiting.record, StepRecord) and waiting.record.reason is None
    if reason is None or begun:
        return None
    must_be_open(session, fingerprint)
    error = interruption_error(waiting.interrupted) if waiting.interrupted else None
    result = StepResult(
        session=session.id,
        step=waiting.id,
        reason=reason,
        tokens=[],
        text="",
        pending=len(texts.held(session.log, session.length)) or None,
        length=session.length,
        usage=Usage(appended=0, generated=0),
    )
    record = _not_begun(session).model_copy(
        update={
            "reason": reason,
            "result": result,
            "error": error,
            "ended": time.time(),
            "deaths": waiting.claimed.deaths,
        }
    )
    event = FinishedEvent(
        session=session.id,
        job=waiting.id,
        at=time.time(),
        reason=reason,
        length=session.length,
        pending=result.pending,
        usage=result.usage,
        error=error,
    )
    write = Write(session, waiting.id, record, done=True, events=[event])

    def end() -> None:
        if error is not None:
            outcomes.fail(waiting.claimed, TokenloomError(error), waiting.interrupted)
        else:
            outcomes.finish(waiting.claimed, result)

    return Proposal(waiting, [write], end=end)


def is_step(waiting: Waiting) -> bool:
    """Whether the job is a step, as far as can be told of one that was not understood."""
    if waiting.claimed.request is not None:
        return isinstance(waiting.claimed.request, StepRequest)
    try:
        return bool(waiting.claimed.job.func_name == StepRequest.function)
    except Exception:  # whatever a hostile payload makes of it, it is no step
        return False


def _early_reason(waiting: Waiting, request: StepRequest) -> FinishReason | None:
    if waiting.interrupted is not None:
        return "timeout" if waiting.interrupted == "timeout" else "cancelled"
    if waiting.cancelled:
        return "cancelled"
    if request.deadline is not None and time.time() >= request.deadline:
        return "timeout"
    return None


def _not_begun(session: Session) -> StepRecord:
    """The record of a step that never began."""
    return StepRecord(base=session.length, appended=0, began=0.0)
