"""The sessions a worker owns, and the jobs waiting in each.

A job stands in the line of every session it needs (a clone: its source and its targets), and its turn has come when it
is first in all of them. Lines are filled in the order of the queue, so two jobs never wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenloom.schemas.errors import TokenloomError

from .jobs.claimed import Claimed, Interruption, Outcomes
from .prefixes import common_prefix
from .residency import Residency
from .session import Session
from .step import Step
from .store import Store
from .waiting import Waiting

#: Seconds a session without cells and without work stays owned.
IDLE_OWNED = 60.0


class SessionTable:
    """Session id -> Session, with its jobs. ``running``: the steps at work, oldest first."""

    def __init__(self, store: Store, residency: Residency, outcomes: Outcomes, most_waiting: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.running: list[Step] = []
        self._store = store
        self._residency = residency
        self._outcomes = outcomes
        self._most_waiting = most_waiting
        self._jobs: dict[str, Waiting] = {}
        self._in_line: dict[str, Waiting] = {}

    @property
    def jobs(self) -> int:
        """Jobs taken and not ended."""
        return len(self._jobs)

    @property
    def line(self) -> int:
        """Jobs that have not begun."""
        return len(self._in_line)

    def find(self, job: str) -> Waiting | None:
        """A job that has been taken and has not ended."""
        return self._jobs.get(job)

    # -- taking ------------------------------------------------------------------------------------------------------

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Read what is not known yet of the jobs and their sessions, and put the jobs in line.

        Of a job that is here already, a stop or a timeout stands; a cancel is the job's own state, and looked at again.
        """
        told: dict[str, Interruption | None] = {job.id: "stopped" for job in claimed if job.stopped}
        for job in claimed:
            former = self._jobs.get(job.id)
            if former is not None and former.interrupted in ("stopped", "timeout"):
                told[job.id] = former.interrupted
        epochs = {name: epoch for job in claimed for name, epoch in job.epochs.items() if epoch >= 0}
        unknown = {
            name: epoch
            for name, epoch in epochs.items()
            if name not in self.sessions or self.sessions[name].epoch != epoch
        }
        if unknown:
            claimed = self._seat_all(self._store.load(unknown), claimed)
        records = self._store.records([(job.session or "", job.id) for job in claimed]) if claimed else []
        for job, (record, cancelled) in zip(claimed, records, strict=True):
            self._line_up(Waiting(job, record, cancelled, told.get(job.id)))

    def adopt(self, epochs: Mapping[str, int]) -> list[Session]:
        """Sessions taken into ownership outside the queue, read and seated."""
        fresh = self._store.load(epochs) if epochs else []
        self._seat_all(fresh, ())
        return [session for session in fresh if session.id in self.sessions]

    def _seat_all(self, fresh: Sequence[Session], claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Seat sessions; those of the claimed jobs that need no damaged one. The others fail."""
        damaged = [session for session in fresh if session.state == "damaged"]
        for session in fresh:
            if session.state != "damaged":
                self._seat(session)
        names = {session.id for session in damaged}
        for session in damaged:
            self.lose(session.id)
        if damaged:
            self._store.release(damaged)
        for job in claimed:
            if not names.isdisjoint(job.epochs):
                self._outcomes.fail(job, job.refusal or _damaged(min(names.intersection(job.epochs))))
        return [job for job in claimed if names.isdisjoint(job.epochs)]

    def _line_up(self, waiting: Waiting) -> None:
        former = self._jobs.get(waiting.id)
        waiting.claimed.expires = None
        if former is not None and former.names != waiting.names:
            self._outcomes.fail(waiting.claimed, _taken(waiting.id, former.names[0]))
            return
        self._jobs[waiting.id] = waiting
        if former is not None:  # delivered again while still here: the newer claim stands
            self._outcomes.drop(former.claimed)
            step = self._running(former)
            if step is not None:
                step.claimed = waiting.claimed
                step.claimed.expires = former.claimed.expires
                return
            self._leave(former)
        self._in_line[waiting.id] = waiting
        now = time.monotonic()
        for name in waiting.names:
            session = self.sessions.get(name)
            if session is None:
                continue
            if len(session.waiting) >= self._most_waiting and waiting.claimed.refusal is None:
                waiting.claimed.refusal = TokenloomError.of(
                    "overloaded",
                    f"session {name!r} has {len(session.waiting)} jobs waiting; no more are taken before one has ended",
                    field="session",
                    value=len(session.waiting),
                    limit=f"{self._most_waiting} (TOKENLOOM_MAX_WAITING_PER_SESSION)",
                )
            session.waiting.append(waiting)
            session.used = now

    def _running(self, waiting: Waiting) -> Step | None:
        session = self.sessions.get(waiting.names[0])
        step = session.running if session is not None else None
        return step if step is not None and step.id == waiting.id else None

    def _seat(self, fresh: Session) -> None:
        """A session as Redis has it, over what we may have known of it under an older epoch."""
        known = self.sessions.get(fresh.id)
        if known is not None:
            for waiting in self._of(known):
                self._forget(waiting)
            self._inherit_cells(known, fresh)
        self.sessions[fresh.id] = fresh

    def _inherit_cells(self, known: Session, fresh: Session) -> None:
        sequence, cached = known.sequence, self._residency.cached(known)
        if sequence is not None:
            keep = min(cached, common_prefix(known.log, fresh.log))
            self._residency.move(known, fresh, keep)

    # -- lines -------------------------------------------------------------------------------------------------------

    def next_jobs(self) -> Iterator[Waiting]:
        """Jobs first in every line they stand in, and interrupted ones wherever they stand; oldest claim first."""
        for waiting in list(self._in_line.values()):
            lines = [self.sessions[name].waiting for name in waiting.names if name in self.sessions]
            if not any(waiting in line for line in lines):
                continue
            targets = (self.sessions[name] for name in waiting.names[1:] if name in self.sessions)
            if waiting.interrupted or (
                all(line[0] is waiting for line in lines if line) and all(t.running is None for t in targets)
            ):
                yield waiting

    def start(self, step: Step) -> None:
        """The step leaves the line and runs; its job has not ended."""
        self._leave(self._jobs[step.id])
        step.session.running = step
        self.running.append(step)
        if step.claimed.timeout is not None:
            step.claimed.expires = time.monotonic() + step.claimed.timeout

    def end(self, waiting: Waiting) -> None:
        """The job has ended."""
        self._leave(waiting)
        self._jobs.pop(waiting.id, None)
        now = time.monotonic()
        for name in waiting.names:
            session = self.sessions.get(name)
            if session is not None:
                session.used = now
                if session.running is not None and session.running.id == waiting.id:
                    self._stop(session)

    def _stop(self, session: Session) -> None:
        if session.running is not None:
            self.running.remove(session.running)
            session.running = None

    def _leave(self, waiting: Waiting) -> None:
        self._in_line.pop(waiting.id, None)
        for name in waiting.names:
            session = self.sessions.get(name)
            if session is not None and waiting in session.waiting:
                session.waiting.remove(waiting)

    def unfinished(self) -> list[Claimed]:
        """Every job not ended, oldest claim first."""
        return [waiting.claimed for waiting in self._jobs.values()]

    # -- losing ------------------------------------------------------------------------------------------------------

    def lose(self, name: str) -> None:
        """Another worker has the session: drop it, its cells and its jobs."""
        session = self.sessions.get(name)
        if session is None:
            return
        for waiting in self._of(session):
            self._forget(waiting)
        self._residency.drop(session)
        self.sessions.pop(name, None)

    def reread(self, session: Session) -> None:
        """Redis has another log than we thought: take Redis's word, and begin the session's jobs again from there."""
        jobs = self._of(session)
        fresh = self._store.load({session.id: session.epoch})[0]
        if fresh.state == "damaged":
            for waiting in jobs:
                self.end(waiting)
                self._outcomes.fail(waiting.claimed, _damaged(session.id))
            self.lose(session.id)
            self._store.release([fresh])
            return
        self._inherit_cells(session, fresh)
        self._stop(session)
        for waiting in jobs:
            self._in_line[waiting.id] = waiting
        fresh.waiting.extend(jobs)  # in other sessions' lines each keeps its place
        fresh.used = session.used
        self.sessions[session.id] = fresh
        records = self._store.records([(waiting.names[0], waiting.id) for waiting in jobs])
        for waiting, (record, cancelled) in zip(jobs, records, strict=True):
            waiting.record, waiting.cancelled = record, cancelled

    def release_idle(self) -> None:
        """Give up sessions that have had neither cells nor work for a while; any worker may take them then."""
        limit = time.monotonic() - IDLE_OWNED
        idle = [
            session
            for session in self.sessions.values()
            if not session.busy and session.sequence is None and (session.used < limit or session.state != "open")
        ]
        if idle:
            for session in self._store.release(idle):
                del self.sessions[session.id]

    def release_unopened(self, ended: Iterable[Waiting]) -> None:
        """Give up what is closed or was never opened and has no more work here, so that any worker may open it."""
        names = {name for waiting in ended for name in waiting.names}
        found = [self.sessions[name] for name in names if name in self.sessions]
        over = [session for session in found if session.state != "open" and not session.busy]
        if over:
            for session in self._store.release(over):
                self._residency.drop(session)
                del self.sessions[session.id]

    def expire(self, idle_ttl: int) -> None:
        """Forget sessions unused for ``idle_ttl`` seconds: their keys have expired, or are about to."""
        limit = time.monotonic() - idle_ttl
        expired = [session for session in self.sessions.values() if not session.busy and session.used < limit]
        for session in expired:
            self._residency.drop(session)
            del self.sessions[session.id]
        self._store.forget_unused(time.time() - idle_ttl)

    def _of(self, session: Session) -> list[Waiting]:
        """The session's jobs, the running one first."""
        running = [self._jobs[session.running.id]] if session.running and session.running.id in self._jobs else []
        return [*running, *session.waiting]

    def _forget(self, waiting: Waiting) -> None:
        self.end(waiting)
        self._outcomes.drop(waiting.claimed)


def _damaged(session: str) -> TokenloomError:
    message = f"session {session!r}: Redis holds of it what no worker has written; delete or repair its keys"
    return TokenloomError.of("internal", message, field="session", value=session)


def _taken(id: str, session: str) -> TokenloomError:
    """Somebody wrote another job over one that is here."""
    message = f"the id {id} is taken by a job of session {session!r} that has not ended"
    return TokenloomError.of("invalid", message, field="id", value=id, limit="an id of its own for each job")
