"""What can go wrong with a job, as codes that travel and exceptions that are raised from them."""

from __future__ import annotations

import re
import reprlib
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field

from .base import TOLD, Wire

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
    "stopped",  # RQ's stop-job, or RQ's cancel of a running job
    "timeout",  # RQ's job timeout
    "internal",
]


class ErrorBody(Wire):
    """An error on the channel and in a failed job."""

    model_config = TOLD

    code: ErrorCode
    message: str
    field: str | None = Field(default=None, description="Dotted path of the offending field")
    value: str | None = Field(default=None, description="The offending value, shortened")
    limit: str | None = Field(default=None, description="What would have been accepted")


class TokenloomError(Exception):
    """Base of every error of a job, on either side of the queue. ``of`` and ``from_body`` give the code's own class."""

    #: The codes a subclass stands for.
    codes: ClassVar[tuple[ErrorCode, ...]] = ()

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(str_of(body))
        self.body = body

    def __reduce__(self) -> tuple[Any, ...]:
        return (TokenloomError.from_body, (self.body,))

    @property
    def code(self) -> ErrorCode:
        return self.body.code

    @staticmethod
    def from_body(body: ErrorBody) -> TokenloomError:
        """The error as the class of its code."""
        return class_of(body.code)(body)

    @staticmethod
    def of(
        code: ErrorCode, message: str, *, field: str | None = None, value: Any = None, limit: Any = None
    ) -> TokenloomError:
        """An error with the given parts; value and limit are shortened to 200 characters."""
        shown = None if value is None else shorten(value)
        most = None if limit is None else shorten(limit)
        return TokenloomError.from_body(ErrorBody(code=code, message=message, field=field, value=shown, limit=most))


class InvalidRequest(TokenloomError):
    """The request itself is wrong: ``body`` names the field, the value and the limit."""

    codes = ("invalid", "unknown_version", "unknown_job")


class NoSuchSession(TokenloomError):
    """No session has this id, or no longer."""

    codes = ("no_such_session", "session_closed")


class SessionExists(TokenloomError):
    """A session has this id already."""

    codes = ("session_exists",)


class LengthMismatch(TokenloomError):
    """The log did not have the length that ``at_length`` named."""

    codes = ("length_mismatch",)


class ContextFull(TokenloomError):
    """The tokens to append do not fit what is left of the model's context."""

    codes = ("context_full",)


class CellsExhausted(TokenloomError):
    """The step can never fit the worker's byte budget of cells."""

    codes = ("cells_exhausted",)


class Unsupported(TokenloomError):
    """The model or the engine cannot do this, or the session belongs to another model."""

    codes = ("model_mismatch", "unsupported")


class Overloaded(TokenloomError):
    """A limit on waiting work refused the job; it may succeed later."""

    codes = ("overloaded",)


class Stopped(TokenloomError):
    """RQ's stop-job ended it."""

    codes = ("stopped",)


class WorkerFailed(TokenloomError):
    """The worker's side failed: the forward, the worker itself, or more than once."""

    codes = ("poison", "engine", "internal")


CLASSES: dict[ErrorCode, type[TokenloomError]] = {
    code: cls for cls in TokenloomError.__subclasses__() for code in cls.codes
}


def class_of(code: ErrorCode) -> type[TokenloomError]:
    """The exception class that stands for a code."""
    return CLASSES.get(code, TokenloomError)


_TEXT = re.compile(rf"\[({'|'.join(get_args(ErrorCode))})\] (.*)", re.DOTALL)


def body_of_text(text: str) -> ErrorBody | None:
    """The error that ends a traceback or a message as ``str_of`` writes it: code and message, or None."""
    found = None
    for found in _TEXT.finditer(text.strip()):  # noqa: B007 - the last one is meant
        pass
    return None if found is None else ErrorBody.model_validate({"code": found[1], "message": found[2]})


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 16
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 160


def shorten(value: Any, most: int = 200) -> str:
    """The value as text of at most ``most`` characters, without looking at all of a large one."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def str_of(body: ErrorBody) -> str:
    """One line: ``[code] message``."""
    return f"[{body.code}] {body.message}"
