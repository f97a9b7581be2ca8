"""What can go wrong with a job, as codes that travel and exceptions that are raised from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .base import Wire

ErrorCode = Literal[
    "invalid",  # a field is malformed; ``field``, ``value`` and ``limit`` say which
    "unknown_version",  # written for a wire contract this side does not speak
    "unknown_job",  # a function name or callback that is not served
    "no_such_session",
    "session_exists",
    "session_closed",
    "length_mismatch",  # ``at_length`` did not hold
    "context_full",  # the append alone would not fit the model's context
    "cells_exhausted",  # would not fit the byte budget even alone
    "model_mismatch",  # the session belongs to another model file
    "unsupported",  # the engine or the model file cannot do this
    "poison",  # killed its worker too often
    "engine",  # the forward failed on this step
    "overloaded",  # a limit on waiting work refused it
    "stopped",  # RQ's stop-job
    "internal",
]


class ErrorBody(Wire):
    """An error on the channel and in a failed job."""

    code: ErrorCode
    message: str
    field: str | None = Field(default=None, description="Dotted path of the offending field")
    value: str | None = Field(default=None, description="The offending value, shortened")
    limit: str | None = Field(default=None, description="What would have been accepted")


class TokenloomError(Exception):
    """Base of every error of a job, on either side of the queue."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(str_of(body))
        self.body = body

    @property
    def code(self) -> str:
        return self.body.code

    @classmethod
    def of(cls, code: ErrorCode, message: str, *, field: str | None = None, value: Any = None, limit: Any = None) -> TokenloomError:
        """An error with the given parts; value and limit are shortened to 200 characters."""
        shown = None if value is None else shorten(value)
        return cls(ErrorBody(code=code, message=message, field=field, value=shown, limit=None if limit is None else shorten(limit)))


def shorten(value: Any, most: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def str_of(body: ErrorBody) -> str:
    return f"[{body.code}] {body.message}"
