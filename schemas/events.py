"""What is published on a session's channel: one msgpack map per event, told apart by ``type``."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, PrivateAttr, Strict, TypeAdapter

from .base import TOLD, Versioned, Wire
from .errors import ErrorBody
from .ids import Position, Seed, SessionId, StepId, TokenId

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]

BEFORE = "U+FFFD when this append broke off a character that the text before it had begun; left out otherwise"
PENDING = (
    "Bytes at the log's end that begin a character and are not all of it; left out when there are none. They are in no"
    " text yet: the text of the next step begins with the whole character, unless something is appended first"
)


class Logprob(Wire):
    """Natural-log probability of a generated token, and of the most likely ones as [token, logprob], best first."""

    model_config = TOLD

    chosen: float
    # A tuple arrives as a list.
    top: list[Annotated[tuple[TokenId, float], Strict(False)]] = []


class Usage(Wire):
    """Token counts of a step. ``cached`` of the ``appended`` and earlier tokens needed no forward."""

    model_config = TOLD

    appended: int = Field(ge=0)
    generated: int = Field(ge=0)
    cached: int = Field(default=0, ge=0)


class EventBase(Versioned):
    """What every event carries, and ``id`` besides once it was read from a stream."""

    model_config = TOLD

    _id: str | None = PrivateAttr(default=None)

    session: SessionId
    job: StepId = Field(description="The RQ job behind the event; for a step, the step's id")
    at: float = Field(description="Unix time in seconds at the worker")

    @property
    def id(self) -> str | None:
        """The id of its entry in the session's stream, to resume after; None for an event that was never in one."""
        return self._id

    def mark(self, id: str) -> None:
        """Sets ``id``; for readers."""
        self._id = id


class OpenedEvent(EventBase):
    """A session began: empty, or as a clone of ``parent`` holding its first ``length`` tokens."""

    type: Literal["opened"] = "opened"
    seed: Seed
    length: Position = 0
    parent: SessionId | None = None


class AppendedEvent(EventBase):
    """A step put these tokens at the end of the log, the first at ``position``."""

    type: Literal["appended"] = "appended"
    position: Position
    tokens: list[TokenId]
    before: str | None = Field(default=None, description=BEFORE)


class TokensEvent(EventBase):
    """A step generated these tokens, the first at ``position``.

    ``text`` is what became certain: half a character, or what may be the start of a stop string, comes with a later
    event, of a later step perhaps.
    """

    type: Literal["tokens"] = "tokens"
    position: Position
    tokens: list[TokenId]
    text: str
    logprobs: list[Logprob] | None = None


class FinishedEvent(EventBase):
    """A step ended; the log has ``length`` tokens. ``text`` is the last of the step's text."""

    type: Literal["finished"] = "finished"
    reason: FinishReason
    length: Position
    text: str = ""
    pending: int | None = Field(default=None, ge=1, le=3, description=PENDING)
    usage: Usage
    error: ErrorBody | None = None


class RewoundEvent(EventBase):
    """The log was cut to ``length`` tokens."""

    type: Literal["rewound"] = "rewound"
    length: Position


class ClonedEvent(EventBase):
    """``targets`` now hold the first ``length`` tokens of this session."""

    type: Literal["cloned"] = "cloned"
    targets: list[SessionId]
    length: Position


class ClosedEvent(EventBase):
    """The session ended. Only refusals follow, until it is opened anew."""

    type: Literal["closed"] = "closed"


class ErrorEvent(EventBase):
    """A job other than a step was refused or failed, and changed nothing."""

    type: Literal["error"] = "error"
    error: ErrorBody


Event = Annotated[
    OpenedEvent | AppendedEvent | TokensEvent | FinishedEvent | RewoundEvent | ClonedEvent | ClosedEvent | ErrorEvent,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)

#: The models of all events, by ``type``.
EVENT_TYPES: dict[str, type[EventBase]] = {
    model.model_fields["type"].default: model for model in get_args(get_args(Event)[0])
}
