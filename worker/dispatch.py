"""Beginning what waits: every job whose turn it is, wave after wave, at most one a session in each.

Jobs of a session run in order. A clone may pass the step running on its source if the tokens it takes are committed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from tokenloom.schemas.errors import ErrorBody, TokenloomError
from tokenloom.schemas.requests import CloneRequest, StepRequest

from .admission import Admission
from .commits import Commits
from .endings import ended_before_it_began, raise_if_barred, refusal, remembered
from .fairness import in_turn
from .jobs.claimed import Outcomes
from .logs import about
from .operations import Desk, Proposal, propose
from .pipelined import PipelinedEngine
from .session import Session
from .session_table import SessionTable
from .stats import Stats
from .step import Step
from .store import Store, Write
from .suspects import Suspects
from .waiting import Waiting

log = logging.getLogger("rq.worker")


class Dispatch:
    """Begins the jobs of one worker."""

    def __init__(
        self,
        table: SessionTable,
        store: Store,
        commits: Commits,
        admission: Admission,
        desk: Desk,
        figures: Stats,
        engine: PipelinedEngine,
        suspects: Suspects,
    ) -> None:
        self.accepting = True
        self._table = table
        self._store = store
        self._commits = commits
        self._admission = admission
        self._desk = desk
        self._settings = desk.settings
        self._outcomes: Outcomes = desk.outcomes
        self._figures = figures
        self._engine = engine
        self._suspects = suspects

    def begin(self) -> bool:
        """Begin all that may begin. True when there was anything."""
        begun = False
        while wave := self._wave():
            begun = True
            suspect = wave[0] if self._suspects.include(wave[0]) else None
            if suspect is not None:
                self._engine.settle()
            with self._suspects.named(suspect):
                self._run(wave)
        return begun

    def _wave(self) -> list[Waiting]:
        """Jobs that may begin now and need no session in common; a suspect goes in a wave of its own."""
        if not self._table.line:
            return []
        wave: list[Waiting] = []
        touched: set[str] = set()
        tenants = [step.tenant for step in self._table.running]
        for waiting in in_turn(self._table.next_jobs(), lambda waiting: waiting.tenant, Counter(tenants)):
            suspect = self._suspects.include(waiting)
            if not touched.isdisjoint(waiting.names) or (suspect and wave) or not self._may_begin(waiting, tenants):
                continue
            wave.append(waiting)
            touched.update(waiting.names)
            if isinstance(waiting.claimed.request, StepRequest):
                tenants.append(waiting.tenant)
            if suspect:
                break
        return wave

    def _may_begin(self, waiting: Waiting, tenants: Sequence[str]) -> bool:
        if waiting.interrupted or waiting.settled:
            return True
        session = self._table.sessions[waiting.names[0]]
        request = waiting.claimed.request
        if session.running is not None:
            passes = isinstance(request, CloneRequest) and request.upto is not None and request.upto <= session.length
            return passes and self.accepting
        if not self.accepting:
            return False
        return not isinstance(request, StepRequest) or self._has_room(waiting.tenant, tenants)

    def _has_room(self, tenant: str, tenants: Sequence[str]) -> bool:
        """Whether one more step may run, in all and for its tenant, besides those of these tenants."""
        most = self._settings.max_active_per_tenant
        return len(tenants) < self._settings.max_active and (most == 0 or tenants.count(tenant) < most)

    # -- one wave ----------------------------------------------------------------------------------------------------

    def _run(self, wave: Sequence[Waiting]) -> None:
        proposals: list[Proposal] = []
        begun: list[tuple[Step, Write]] = []
        for waiting in wave:
            session = self._table.sessions[waiting.names[0]]
            try:
                found = self._proposal(waiting, session) or self._admission.begin(waiting, session)
            except TokenloomError as error:
                proposals.append(self._refused(waiting, session, error))
            except Exception as error:  # a job must never take the worker with it
                known = about(session.id, waiting.id)
                log.exception("tokenloom: job %s: unexpected error before its first forward", waiting.id, extra=known)
                body = ErrorBody(code="internal", message=f"{type(error).__name__}: {error}")
                proposals.append(self._refused(waiting, session, TokenloomError(body)))
            else:
                if isinstance(found, Proposal):
                    proposals.append(found)
                    continue
                step, write = found
                if write is not None:
                    begun.append((step, write))
                else:
                    self._figures.resume(step)
                    self._start(step)
        self._carry_out(proposals, begun)

    def _proposal(self, waiting: Waiting, session: Session) -> Proposal | None:
        """What the job would write. None for a step that is to begin."""
        if waiting.settled:
            return remembered(waiting, self._outcomes)
        raise_if_barred(waiting, self._settings.max_deaths)
        if not isinstance(waiting.claimed.request, StepRequest):
            return propose(waiting, session, self._desk)
        texts = self._admission.texts
        return ended_before_it_began(waiting, session, self._outcomes, self._desk.fingerprint, texts)

    def _refused(self, waiting: Waiting, session: Session, error: TokenloomError) -> Proposal:
        self._figures.refuse(error, session.id, waiting.id)
        return refusal(waiting, session, error, self._outcomes)

    def _carry_out(self, proposals: list[Proposal], begun: list[tuple[Step, Write]]) -> None:
        writes = [write for proposal in proposals for write in proposal.writes] + [write for _, write in begun]
        answers = iter(self._store.write(writes))
        done = [p for p in proposals if self._commits.held([(write, next(answers)) for write in p.writes])]
        begins = [(step, write, next(answers)) for step, write in begun]
        for proposal in self._completed(done):
            proposal.apply()
            self._table.end(proposal.waiting)
            proposal.end()
        self._table.release_unopened(proposal.waiting for proposal in proposals)
        for step, write, answer in begins:
            if self._commits.held([(write, answer)]):
                step.session.log.frombytes(write.append)
                self._start(step)
                if answer.cancelled:
                    step.finish("cancelled")
                    self._commits.commit([step])

    def _completed(self, proposals: list[Proposal]) -> list[Proposal]:
        """Those of which the last write holds as well, or that have none."""
        answers = iter(self._store.write([p.last for p in proposals if p.last is not None]))
        return [p for p in proposals if p.last is None or self._commits.held([(p.last, next(answers))])]

    def _start(self, step: Step) -> None:
        self._table.start(step)
        step.settle()
        self._commits.commit([step])
