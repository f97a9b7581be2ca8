"""Adding up event streams: what a reader who has nothing but the events would say happened."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from chaos.history import Event, History

Snapshot = tuple[list[int], list[bool]]


@dataclass
class StepSum:
    """One step by its events. ``length``, ``pending``: what ``finished`` said; ``before``: what ``appended`` did;
    ``behind``: the generated tokens that the log ended with when the step began.
    """

    session: str
    behind: list[int] = field(default_factory=list)
    appended: list[int] | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    before: str = ""
    pending: int = 0
    finished: int = 0
    reason: str = ""
    length: int = -1
    error: str | None = None
    message: str = ""
    ids: list[str] = field(default_factory=list)


@dataclass
class Folded:
    """The sum of a run's events, and what made no sense while adding."""

    violations: list[str] = field(default_factory=list)
    logs: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, StepSum] = field(default_factory=dict)
    #: job id -> session -> how often an event says that the job was done there
    done: dict[str, Counter[str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    #: session -> job ids in the order in which they ended there
    order: dict[str, list[str]] = field(default_factory=dict)


class _Reader:
    """Adds up one stream; ``snapshots`` are shared: clone job -> what the source held when it was told, and which of it
    was generated.
    """

    def __init__(self, session: str, entries: list[tuple[str, Event]], into: Folded, snapshots: dict[str, Snapshot]):
        self.session = session
        self.left = deque(entries)
        self._into = into
        self._snapshots = snapshots
        self._log = into.logs.setdefault(session, [])
        self._generated: list[bool] = []
        self._order = into.order.setdefault(session, [])
        self._open = False
        self._step: str | None = None
        self._last = (0, 0)
        self._seen: set[tuple[object, ...]] = set()

    def read(self, *, blocked_is_wrong: bool = False) -> bool:
        """Add up as far as possible. Whether anything was added."""
        before = len(self.left)
        while self.left:
            id, event = self.left[0]
            if event["type"] == "opened" and event.get("parent") and event["job"] not in self._snapshots:
                if not blocked_is_wrong:
                    break
                self._wrong(event, "is a clone that its source was never told of")
                self._snapshots[event["job"]] = ([-1] * event["length"], [False] * event["length"])
            self.left.popleft()
            self._add(id, event)
        return len(self.left) < before

    def _wrong(self, event: Event, what: str) -> None:
        self._into.violations.append(f"session {self.session}: {event['type']} event of job {event['job']} {what}")

    def _add(self, id: str, event: Event) -> None:
        milliseconds, _, sequence = id.partition("-")
        place = (int(milliseconds), int(sequence))
        if place <= self._last:
            self._wrong(event, f"has the id {id}, which does not follow the one before")
        self._last = max(place, self._last)
        kind = event["type"]
        mark = (kind, event["job"], event.get("position"), tuple(event.get("tokens", ())))
        if mark in self._seen:
            self._wrong(event, f"comes twice (position {event.get('position')})")
        self._seen.add(mark)
        if event["session"] != self.session:
            self._wrong(event, f"belongs to session {event['session']}")
        getattr(self, f"_add_{kind}")(id, event)

    def _end(self, event: Event) -> None:
        self._into.done.setdefault(event["job"], Counter())[self.session] += 1
        self._order.append(event["job"])

    def _must_be_open(self, event: Event) -> None:
        if not self._open:
            self._wrong(event, "comes while the session is not open")

    def _nobody_runs(self, event: Event) -> None:
        if self._step is not None:
            self._wrong(event, f"comes in the middle of step {self._step}")

    def _add_opened(self, id: str, event: Event) -> None:
        if self._open:
            self._wrong(event, "comes while the session is open")
        inherited, generated = self._snapshots[event["job"]] if event.get("parent") else ([], [])
        if len(inherited) != event["length"]:
            self._wrong(event, f"says {event['length']} tokens were taken over; the source had {len(inherited)}")
        self._open, self._step = True, None
        self._log[:], self._generated = inherited, [*generated]
        self._end(event)

    def _add_cloned(self, id: str, event: Event) -> None:
        self._must_be_open(event)
        if event["length"] > len(self._log):
            self._wrong(event, f"says {event['length']} tokens; the log has {len(self._log)}")
        self._snapshots[event["job"]] = (self._log[: event["length"]], self._generated[: event["length"]])
        self._end(event)

    def _add_rewound(self, id: str, event: Event) -> None:
        self._must_be_open(event)
        self._nobody_runs(event)
        if event["length"] > len(self._log):
            self._wrong(event, f"cuts to {event['length']}; the log has {len(self._log)}")
        del self._log[event["length"] :], self._generated[event["length"] :]
        self._end(event)

    def _add_closed(self, id: str, event: Event) -> None:
        self._must_be_open(event)
        self._nobody_runs(event)
        self._open = False
        self._end(event)

    def _add_error(self, id: str, event: Event) -> None:
        self._into.errors[event["job"]] = event["error"]["code"]
        self._order.append(event["job"])

    def _at_work(self, id: str, event: Event) -> StepSum:
        if self._step not in (None, event["job"]):
            self._wrong(event, f"comes in the middle of step {self._step}")
        if event["job"] not in self._into.steps:
            self._into.steps[event["job"]] = StepSum(self.session, self._behind())
        step = self._into.steps[event["job"]]
        if step.finished and event["type"] != "finished":
            self._wrong(event, "comes after the step had finished")
        step.ids.append(id)
        self._step = event["job"]
        return step

    def _behind(self) -> list[int]:
        """The generated tokens at the log's end."""
        start = len(self._log)
        while start and self._generated[start - 1]:
            start -= 1
        return self._log[start:]

    def _grow(self, event: Event) -> None:
        self._must_be_open(event)
        if event["position"] > len(self._log):
            self._wrong(event, f"leaves a gap: it begins at {event['position']}, and the log has {len(self._log)}")
        elif event["position"] < len(self._log):
            self._wrong(event, f"overlaps: it begins at {event['position']}, and the log has {len(self._log)}")
        del self._log[event["position"] :], self._generated[event["position"] :]
        self._log.extend(event["tokens"])
        self._generated += [event["type"] == "tokens"] * (len(self._log) - len(self._generated))

    def _add_appended(self, id: str, event: Event) -> None:
        step = self._at_work(id, event)
        if step.appended is not None:
            self._wrong(event, "is the second of its step")
        if step.tokens:
            self._wrong(event, "comes after tokens of its step")
        step.appended, step.before = event["tokens"], event.get("before", "")
        self._grow(event)

    def _add_tokens(self, id: str, event: Event) -> None:
        step = self._at_work(id, event)
        self._grow(event)
        step.tokens += event["tokens"]
        step.text += event["text"]

    def _add_finished(self, id: str, event: Event) -> None:
        step = self._at_work(id, event)
        step.finished += 1
        step.text += event.get("text", "")
        step.pending = event.get("pending", 0)
        step.reason, step.length = event["reason"], event["length"]
        error = event.get("error") or {}
        step.error, step.message = error.get("code"), error.get("message", "")
        if event["length"] != len(self._log):
            self._wrong(event, f"says {event['length']} tokens; the events add up to {len(self._log)}")
        usage = event["usage"]
        if usage["generated"] != len(step.tokens):
            self._wrong(event, f"says {usage['generated']} tokens were generated; events had {len(step.tokens)}")
        self._step = None
        self._order.append(event["job"])


def fold(history: History) -> Folded:
    """Add up every stream. A clone waits for what its source says it had."""
    folded = Folded()
    snapshots: dict[str, Snapshot] = {}
    readers = [_Reader(session, entries, folded, snapshots) for session, entries in history.events.items()]
    while sum(reader.read() for reader in readers):
        pass
    for reader in readers:
        reader.read(blocked_is_wrong=True)
    for session, step in ((reader.session, reader._step) for reader in readers):
        if step is not None:
            folded.violations.append(f"session {session}: step {step} was begun and never finished")
    return folded
