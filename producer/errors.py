"""What a service may catch besides the errors of the contract."""

from __future__ import annotations

from functools import cache

from tokenloom.schemas.errors import ErrorBody, ErrorCode, TokenloomError, class_of
from tokenloom.schemas.records import StepResult


class StepFailed(TokenloomError):
    """A step ended with reason ``error``.

    What is raised is also of the class of its code, so that both ``except StepFailed`` and ``except ContextFull`` catch
    it. ``result`` is what the step had committed by then, when that is known.
    """

    result: StepResult | None = None

    @staticmethod
    def of_body(body: ErrorBody, result: StepResult | None = None) -> StepFailed:
        """The error of a step with this body."""
        error = _step_class(body.code)(body)
        error.result = result
        return error


@cache
def _step_class(code: ErrorCode) -> type[StepFailed]:
    cls = class_of(code)
    if cls is TokenloomError:
        return StepFailed
    return type(f"Step{cls.__name__}", (StepFailed, cls), {"__doc__": cls.__doc__, "__module__": __name__})


class NoSuchStep(LookupError):
    """Neither RQ nor the session remembers a job of this id: expired, deleted, or never enqueued."""


class EventsLost(RuntimeError):
    """Events were trimmed from the stream before they were read. The step's ``result()`` still has everything."""


class RedisUnavailable(ConnectionError):
    """Redis could not be reached, or stayed away longer than the client's patience. The message says where."""
