"""The five jobs: the keyword arguments of each, and the name of its function on the wire."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from .base import Versioned, Wire
from .generation import Generation
from .ids import Position, Seed, SessionId, Tenant, TokenId

MAX_APPENDED_TOKENS = 1 << 20
MAX_TEXT = 1 << 22
MAX_CLONES = 1024


class Request(Versioned):
    """One job for one session."""

    function: ClassVar[str]

    session: SessionId
    tenant: Tenant | None = None

    @property
    def sessions(self) -> tuple[str, ...]:
        """Every session this job needs to own, the one it is queued under first."""
        return (self.session,)


class OpenRequest(Request):
    """Begin a session with an empty log."""

    function: ClassVar[str] = "tokenloom.schemas.jobs.open"

    seed: Seed | None = Field(
        default=None, description="Default: derived from the session's id and the time of opening"
    )
    defaults: Generation | None = None
    exist_ok: bool = Field(default=False, description="Opening an open session is then a success that changes nothing")


class ChatMessage(Wire):
    """One turn, in the shape chat templates expect."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str, Field(max_length=MAX_TEXT)]


class StepRequest(Request):
    """Append, then generate. At most one of ``tokens``, ``text`` and ``messages``; none continues the log as it is."""

    function: ClassVar[str] = "tokenloom.schemas.jobs.step"

    # fail_fast, here and below: an error for each of a million wrong items would take minutes and gigabytes.
    tokens: list[TokenId] | None = Field(default=None, max_length=MAX_APPENDED_TOKENS, fail_fast=True)
    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=4096, fail_fast=True)
    generation: Generation = Generation()
    deadline: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Unix time in seconds after which the step ends as `timeout`"
    )
    at_length: Position | None = Field(
        default=None, description="Refuse unless the log has this length when the step starts"
    )

    @model_validator(mode="after")
    def _one_input(self) -> StepRequest:
        given = [name for name in ("tokens", "text", "messages") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give at most one of tokens, text and messages, not {' and '.join(given)}")
        return self


class CloneRequest(Request):
    """New sessions holding the first ``upto`` tokens of this one."""

    function: ClassVar[str] = "tokenloom.schemas.jobs.clone"

    targets: list[SessionId] = Field(min_length=1, max_length=MAX_CLONES, fail_fast=True)
    upto: Position | None = Field(default=None, description="Default: the whole log")
    seeds: list[Seed] | None = Field(
        default=None,
        max_length=MAX_CLONES,
        fail_fast=True,
        description="One a target; default: derived from the source's seed and the target's id",
    )

    @property
    def sessions(self) -> tuple[str, ...]:
        return (self.session, *self.targets)

    @model_validator(mode="after")
    def _matching(self) -> CloneRequest:
        if len(set(self.targets)) != len(self.targets) or self.session in self.targets:
            raise ValueError("targets: every id must be different, and none the source's")
        if self.seeds is not None and len(self.seeds) != len(self.targets):
            raise ValueError(f"seeds: {len(self.seeds)} given for {len(self.targets)} targets")
        return self


class RewindRequest(Request):
    """Drop all of the log but its first ``to`` tokens."""

    function: ClassVar[str] = "tokenloom.schemas.jobs.rewind"

    to: Position


class CloseRequest(Request):
    """End the session: cells freed now, keys gone after a grace period."""

    function: ClassVar[str] = "tokenloom.schemas.jobs.close"


REQUESTS: dict[str, type[Request]] = {
    model.function: model for model in (OpenRequest, StepRequest, CloneRequest, RewindRequest, CloseRequest)
}

Operation = Literal["open", "step", "clone", "rewind", "close"]
