"""Committing what steps have computed, and what becomes of a write that Redis refused.

Memory agrees with Redis only here: a session's log grows, and a step has ended, once the write that says so is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.log import pack

from .jobs.claimed import Outcomes
from .session_table import SessionTable
from .settings import WorkerSettings
from .stats import Stats
from .step import Step
from .store import Store, Write, Written


class Commits:
    """The writes of one worker's steps."""

    def __init__(
        self, store: Store, table: SessionTable, outcomes: Outcomes, figures: Stats, settings: WorkerSettings
    ) -> None:
        self._store = store
        self._table = table
        self._outcomes = outcomes
        self._figures = figures
        self._settings = settings

    def commit(self, steps: Iterable[Step], rows: Mapping[str, bytes | None] | None = None, worker: str = "") -> bool:
        """Write what the steps have computed since their last commit, and end those that have ended.

        ``rows`` of the persisted session table are saved with them. False when no step had anything to write.
        """
        due = [step for step in steps if step.uncommitted and step.session.running is step]
        any_due = bool(due)
        while due or rows:
            writes = [step_write(step, self._settings) for step in due]
            answers = self._store.write(writes, sequences=rows, worker=worker)
            for step, write, answer in zip(due, writes, answers, strict=True):
                if self.held([(write, answer)]):
                    self._agreed(step, write, answer)
            rows = None
            due = [step for step in due if step.reason is not None and step.session.running is step]
        return any_due

    def _agreed(self, step: Step, write: Write, answer: Written) -> None:
        step.session.log.frombytes(write.append)
        step.committed()
        if step.reason is not None:
            self._end(step)
        elif answer.cancelled:
            step.finish("cancelled")

    def _end(self, step: Step) -> None:
        waiting = self._table.find(step.id)
        assert waiting is not None
        self._table.end(waiting)
        self._figures.finished(step)
        if step.error is not None:
            self._outcomes.fail(step.claimed, TokenloomError(step.error), waiting.interrupted)
        else:
            self._outcomes.finish(step.claimed, step.result())

    def held(self, written: Sequence[tuple[Write, Written]]) -> bool:
        """Whether every write is in Redis. Sessions whose write was refused are lost or read again."""
        held = True
        for write, answer in written:
            if answer.held:
                if write.writes:
                    write.session.writer = write.job
                continue
            held = False
            if answer.status == "lost":
                self._figures.fence(write.session.id, write.job)
                self._table.lose(write.session.id)
            else:
                self._figures.read_again(write.session.id, write.job)
                self._table.reread(write.session)
        return held


def step_write(step: Step, settings: WorkerSettings) -> Write:
    """The commit of what a step has computed since its last one."""
    write = Write(
        step.session,
        step.id,
        step.record(),
        done=step.reason is not None,
        append=pack(step.new_tokens(), generated=True),
        events=step.events(),
    )
    if write.done and settings.idle_ttl:
        write.ttl = settings.idle_ttl
    return write
