"""What a reader has seen of a job so far, and how long it has waited."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenloom.schemas.events import (
    AppendedEvent,
    ClonedEvent,
    ClosedEvent,
    ErrorEvent,
    Event,
    FinishedEvent,
    Logprob,
    OpenedEvent,
    RewoundEvent,
    TokensEvent,
    Usage,
)
from tokenloom.schemas.records import StepResult

from .ending import Ending, JobRef
from .errors import EventsLost

#: The event that says an operation is done.
DONE: dict[str, type[Event]] = {
    "open": OpenedEvent,
    "step": FinishedEvent,
    "clone": ClonedEvent,
    "rewind": RewoundEvent,
    "close": ClosedEvent,
}


class Clock:
    """Time since the beginning, or since the last event unless ``whole``. ``timeout`` None never comes."""

    def __init__(self, timeout: float | None, *, whole: bool) -> None:
        self.timeout = timeout
        self.whole = whole
        self.warned = False
        self._began = self._heard = time.monotonic()

    def tick(self, heard: bool) -> None:
        """One more round is over; ``heard`` when it brought something."""
        if heard:
            self._heard = time.monotonic()

    @property
    def quiet(self) -> float:
        """Seconds since something was heard."""
        return time.monotonic() - self._heard

    @property
    def up(self) -> bool:
        """Whether the timeout has passed."""
        return self.timeout is not None and self._remaining(self.timeout) <= 0

    def left(self, most: float) -> float:
        """Seconds to wait at most in one go."""
        return most if self.timeout is None else max(0.001, min(most, self._remaining(self.timeout)))

    def _remaining(self, timeout: float) -> float:
        return (self._began if self.whole else self._heard) + timeout - time.monotonic()


@dataclass
class Seen:
    """The job's events read so far, from the stream id ``last`` on, and whether that was the job's beginning."""

    last: str
    whole: bool
    result: str = "0-0"
    _position: int | None = None
    _tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _before: str | None = None
    _logprobs: list[Logprob] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Counts an event of the job. Raises EventsLost where the log's positions leave some out."""
        if isinstance(event, (AppendedEvent, TokensEvent)):
            if self._position is not None and event.position > self._position:
                raise EventsLost(
                    f"step {event.job}: tokens {self._position} to {event.position - 1} of the log were trimmed from "
                    "the stream before they were read; result() has them"
                )
            if self._position is not None and event.position < self._position:  # a retry began again
                self._tokens, self._text, self._logprobs = [], [], []
            self._position = event.position + len(event.tokens)
        if isinstance(event, AppendedEvent):
            self._before = event.before
        if isinstance(event, TokensEvent):
            self._tokens += event.tokens
            self._text.append(event.text)
            self._logprobs += event.logprobs or []
        if isinstance(event, FinishedEvent):
            if self.whole and event.reason != "error" and event.usage.generated != len(self._tokens):
                raise EventsLost(
                    f"step {event.job}: {len(self._tokens)} of its {event.usage.generated} tokens were still in the "
                    "stream; result() has them all"
                )
            self._text.append(event.text)

    def assembled(self, job: JobRef, last: FinishedEvent) -> StepResult | None:
        """The result made of the events alone, or None when some of them were not seen."""
        if last.usage.generated != len(self._tokens):
            return None
        return StepResult(
            session=job.session,
            step=job.id,
            reason=last.reason,
            tokens=self._tokens,
            text="".join(self._text),
            before=self._before,
            pending=last.pending,
            length=last.length,
            usage=last.usage,
            logprobs=self._logprobs or None,
        )

    def rest(self, job: JobRef, ending: Ending) -> list[Event]:
        """What the stream no longer has of a job that is over: its tokens, when none was seen, and ``finished``."""
        now = time.time()
        result = ending.result if isinstance(ending.result, StepResult) else None
        events: list[Event] = []
        if result is not None and result.tokens and self.whole and not self._tokens:
            events.append(
                TokensEvent(
                    session=job.session,
                    job=job.id,
                    at=now,
                    position=result.length - len(result.tokens),
                    tokens=result.tokens,
                    text=result.text,
                    logprobs=result.logprobs,
                )
            )
        elif result is not None and self._tokens and len(self._tokens) != len(result.tokens) and self.whole:
            raise EventsLost(
                f"step {job.id}: {len(self._tokens)} of its {len(result.tokens)} tokens were still in the stream; "
                "result() has them all"
            )
        events.append(
            FinishedEvent(
                session=job.session,
                job=job.id,
                at=now,
                reason="error" if ending.error is not None or result is None else result.reason,
                length=result.length if result is not None else self._position or 0,
                pending=result.pending if result is not None else None,
                usage=result.usage if result is not None else Usage(appended=0, generated=len(self._tokens)),
                error=ending.error,
            )
        )
        return events


def last_of(operation: str, events: Sequence[Event]) -> Event | None:
    """The event among the job's own that says it is over, or None."""
    return next((event for event in reversed(events) if isinstance(event, (DONE[operation], ErrorEvent))), None)
