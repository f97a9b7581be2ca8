"""Following one job to its end: its events as they arrive, and its result from wherever it is still known."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event, FinishedEvent
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.validate import decode_event

from .connect import TROUBLE
from .diagnose import diagnose
from .ending import Ending, JobRef, ask_ending
from .following import order, require_untrimmed
from .progress import Clock, Seen, last_of
from .talk import Ask, Emit, Entries, Read, Sleep, Talk, patient

log = logging.getLogger("tokenloom.producer")

#: Seconds one XREAD waits; after one that brought nothing, RQ is asked whether the job is over.
BLOCK = 1.0

#: Seconds without any sign of the job after which a missing worker is warned of.
WARN_AFTER = 5.0

#: Seconds a step's error waits for RQ to say whether it is retried.
VERDICT = 2.0


@dataclass(frozen=True)
class Watch:
    """One job and where its signs appear. ``after`` is the id of the stream's entry before its first event.

    ``attached`` says that the job was not enqueued just now, so that it may be over already. ``patience`` is how many
    seconds Redis may be away.
    """

    keys: Keys
    queue: str
    where: str
    job: JobRef
    after: str
    attached: bool = False
    patience: float = 60.0

    def result(self, timeout: float | None) -> Talk[Versioned]:
        """The job's result.

        Raises TokenloomError when it failed (StepFailed for a step), NoSuchStep when nobody knows it any more, and
        TimeoutError, which tells whether a worker is alive, after ``timeout`` seconds.
        """
        clock = Clock(timeout, whole=True)
        seen = Seen(self.after, whole=False)
        ending = (yield from self._ending()) if self.attached else None
        while ending is None:
            events, over = yield from self._read(seen, clock.left(BLOCK))
            last = last_of(self.job.operation, events)
            if last is not None or over or not events:
                ending = yield from self._ending()
                if ending is None and isinstance(last, FinishedEvent) and last.reason != "error":
                    assembled = seen.assembled(self.job, last)
                    ending = Ending(result=assembled) if assembled is not None else None
            if ending is None:
                yield from self._tick(clock, heard=bool(events))
        return ending.value(self.job.operation)

    def events(self, from_id: str | None, timeout: float | None) -> Talk[None]:
        """Emits a step's events after ``from_id`` (default: from its beginning), the last one ``finished``.

        What RQ and the session still know fills in when the stream has nothing: a step that ended without events for
        this reader gets its tokens in one event and a ``finished``, both without an id. Raises EventsLost when events
        were trimmed before they were read, and TimeoutError when ``timeout`` seconds brought no event.
        """
        clock = Clock(timeout, whole=False)
        whole = from_id is None or order(from_id) == (0, 0)
        seen = Seen(self.after if whole else str(from_id), whole=whole)
        resuming = None if whole else seen.last
        check = self.attached
        while True:
            # Asked before the stream is read: a job that was over by then has nothing more to come after it.
            ending = (yield from self._ending()) if check else None
            events, over = yield from self._read(seen, 0.0 if ending is not None else clock.left(BLOCK))
            if resuming is not None:
                yield from self._untrimmed(resuming)
                resuming = None
            while events:
                for event in events:
                    yield Emit(event)
                    if isinstance(event, FinishedEvent) and event.reason != "error":
                        return
                if not (isinstance(events[-1], FinishedEvent) and (yield from self._final())):
                    break
                # RQ will not try again; what its retries did before it said so is in the stream by now
                events, over = yield from self._read(seen, 0.0)
                if not events:
                    return
            if ending is not None and not events:
                for event in seen.rest(self.job, ending):
                    yield Emit(event)
                return
            check = over or not events
            yield from self._tick(clock, heard=bool(events))

    def _ending(self) -> Talk[Ending | None]:
        return (yield from ask_ending(self.keys, self.job, where=self.where, patience=self.patience))

    def _final(self) -> Talk[bool]:
        """Whether RQ will not retry the step that just failed. Its verdict follows the event within moments."""
        until = time.monotonic() + VERDICT
        while time.monotonic() < until:
            (status,) = yield from self._ask("HGET", f"rq:job:{self.job.id}", "status")
            if status != b"started":
                return status not in (b"queued", b"scheduled", b"deferred")
            yield Sleep(0.02)
        return True

    def _untrimmed(self, from_id: str) -> Talk[None]:
        yield from require_untrimmed(self.keys, self.job.session, from_id, where=self.where, patience=self.patience)

    def _ask(self, *command: object) -> Talk[list[Any]]:
        answers: list[Any] = yield from patient(Ask((command,)), where=self.where, patience=self.patience)
        return answers

    def _read(self, seen: Seen, block: float) -> Talk[tuple[list[Event], bool]]:
        """The job's own events that are new, and whether RQ has written a result."""
        events_key, results_key = self.keys.events(self.job.session), f"rq:results:{self.job.id}"
        streams = {events_key: seen.last, results_key: seen.result}
        entries: Entries = yield from patient(Read(streams, block), where=self.where, patience=self.patience)
        events: list[Event] = []
        over = False
        for key, items in entries:
            if key == results_key:
                seen.result = items[-1][0]
                over = True
                continue
            for id, fields in items:
                seen.last = id
                event = decode_event(fields[b"e"], id=id)
                if event.job == self.job.id:
                    seen.take(event)
                    events.append(event)
        return events, over

    def _tick(self, clock: Clock, *, heard: bool) -> Talk[None]:
        """Keeps time: warns once when nobody serves the queue, raises TimeoutError when time is up."""
        clock.tick(heard)
        warn = clock.quiet >= WARN_AFTER and not clock.warned
        if not warn and not clock.up:
            return
        clock.warned = True
        up = clock.up
        what = f"{self.job.operation} {self.job.id} of session {self.job.session}"
        try:
            found = yield from diagnose(self.keys, self.queue, self.job.id)
        except TROUBLE as error:
            served, text = True, f"Redis at {self.where} does not answer ({error})"
        else:
            served, text = found.served, found.text
        if up:
            raise TimeoutError(
                f"no {'result' if clock.whole else 'event'} of {what} within {clock.timeout:g} s: {text}"
            )
        if not served:
            log.warning("%s has waited %.0f s: %s", what, clock.quiet, text)
