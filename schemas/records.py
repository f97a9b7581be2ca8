"""What is kept in Redis besides logs and events, and what a finished job returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .base import TOLD, Versioned
from .errors import ErrorBody
from .events import BEFORE, PENDING, FinishReason, Logprob, Usage
from .ids import Position, Seed, SessionId, StepId, TokenId


class Kept(Versioned):
    """What a worker leaves for whoever reads it later."""

    model_config = TOLD


class OpenResult(Kept):
    """The session is there; ``length`` is 0 when it was created."""

    session: SessionId
    seed: Seed
    length: Position
    created: bool = Field(description="False when the session was there already and `exist_ok` was given")


class StepResult(Kept):
    """``text`` and ``tokens`` are what the step generated; ``length`` is the log's length at its end.

    The texts of steps between which nothing is appended are together the text of their tokens.
    """

    session: SessionId
    step: StepId
    reason: FinishReason
    tokens: list[TokenId]
    text: str
    before: str | None = Field(default=None, description=BEFORE)
    pending: int | None = Field(default=None, ge=1, le=3, description=PENDING)
    length: Position
    usage: Usage
    logprobs: list[Logprob] | None = None


class CloneResult(Kept):
    """``targets`` hold the first ``length`` tokens of ``session``, each with its seed."""

    session: SessionId
    targets: list[SessionId]
    seeds: list[Seed]
    length: Position


class RewindResult(Kept):
    """The log has ``length`` tokens now."""

    session: SessionId
    length: Position


class CloseResult(Kept):
    """The session is no more."""

    session: SessionId
    closed: bool = Field(description="False when there was no such session, or it was closed already")


class StepRecord(Kept):
    """How far a step has come; kept under its id in the session's ``steps`` hash, and rewritten by every commit.

    The step's tokens are the log's ``[base, base + appended + generated)``. ``reason`` is None while it runs. A
    finished record is the step's memory: the same id enqueued again returns ``result`` and runs nothing.
    """

    base: Position
    appended: int = Field(ge=0)
    generated: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    reason: FinishReason | None = None
    began: float
    ended: float | None = None
    result: StepResult | None = Field(default=None, description="Given once `reason` is")
    error: ErrorBody | None = Field(default=None, description="Given when ``reason`` is error")
    deaths: int = Field(default=0, ge=0, description="The job's worker deaths when this was written")


class JobRecord(Kept):
    """What a finished job other than a step returned, kept under its id in the same ``steps`` hash.

    A job delivered again after its commit returns ``result`` and does nothing.
    """

    operation: Literal["open", "clone", "rewind", "close"]
    result: OpenResult | CloneResult | RewindResult | CloseResult | None = None
    error: ErrorBody | None = Field(default=None, description="Given when the job was refused or failed")
    deaths: int = Field(default=0, ge=0, description="The job's worker deaths when this was written")

    @model_validator(mode="after")
    def _matching(self) -> JobRecord:
        if self.result is None:
            if self.error is None:
                raise ValueError("result: a record has a result or an error")
        elif not isinstance(self.result, RESULTS[self.operation]):
            raise ValueError(f"result: {type(self.result).__name__} is not what {self.operation} returns")
        return self


RESULTS: dict[str, type[Versioned]] = {
    "open": OpenResult,
    "step": StepResult,
    "clone": CloneResult,
    "rewind": RewindResult,
    "close": CloseResult,
}
