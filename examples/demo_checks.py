"""What the demo promises, checked against what was delivered and what is in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenloom.producer import Client, Event, Session
from tokenloom.schemas.events import AppendedEvent, FinishedEvent, OpenedEvent, RewoundEvent, TokensEvent
from tokenloom.schemas.validate import decode_event


class Checks:
    """Prints each check's outcome; ``failed`` counts those that did not hold."""

    def __init__(self) -> None:
        self.failed = 0

    def expect(self, what: str, problems: Sequence[str]) -> None:
        """One check: it holds when there are no problems."""
        self.failed += bool(problems)
        print(f"  {'ok    ' if not problems else 'FAILED'}  {what}")
        for problem in problems[:5]:
            print(f"            {problem}")


def stored(client: Client, session: Session) -> list[Event]:
    """The session's stream, as it is in Redis."""
    entries: Any = client.connection.xrange(client.keys.events(session.id))
    return [decode_event(fields[b"e"], id=id.decode()) for id, fields in entries]


def delivery(name: str, received: Sequence[Event], kept: Sequence[Event]) -> list[str]:
    """Whether a reader got each event of the stream once, in order."""
    ids = [event.id for event in received]
    doubled = sorted({str(id) for id in ids if ids.count(id) > 1})
    if doubled:
        return [f"{name}: delivered twice: {', '.join(doubled)}"]
    expected = [event.id for event in kept]
    return [] if ids == expected else [f"{name}: {len(ids)} events delivered, {len(expected)} in the stream"]


def log_of(name: str, events: Sequence[Event], parents: dict[str, list[int]]) -> tuple[list[int], list[str]]:
    """The log that the events add up to, and where a position is not the one after the last."""
    log: list[int] = []
    problems = []
    for event in events:
        if isinstance(event, OpenedEvent):
            log = parents[event.parent][: event.length] if event.parent else []
        elif isinstance(event, RewoundEvent):
            log = log[: event.length]
        elif isinstance(event, (AppendedEvent, TokensEvent)):
            if event.position != len(log):
                problems.append(f"{name}: {event.type} at position {event.position}, the log had {len(log)} tokens")
            log = log[: event.position] + event.tokens
        elif isinstance(event, FinishedEvent) and event.length != len(log):
            problems.append(f"{name}: a step finished at length {event.length}, its events add up to {len(log)}")
    return log, problems


def endings(name: str, events: Sequence[Event], steps: Sequence[str]) -> list[str]:
    """Whether each step finished once, with as many tokens as it says."""
    problems = []
    for step in steps:
        ends = [event for event in events if isinstance(event, FinishedEvent) and event.job == step]
        told = sum(len(event.tokens) for event in events if isinstance(event, TokensEvent) and event.job == step)
        if len(ends) != 1:
            problems.append(f"{name}: {len(ends)} ends of step {step}")
        elif ends[0].usage.generated != told:
            problems.append(f"{name}: step {step} says {ends[0].usage.generated} tokens, its events have {told}")
    return problems
