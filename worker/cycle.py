"""The cycle: admit what waits, plan, ONE forward, commit. Everything the worker does to sessions happens in ``turn``.

- Nothing is visible before its write is in Redis, and every write is fenced (lua/commit.lua). A session whose write is
  answered "lost" is dropped without a word: another worker goes on with it.
- Jobs of a session run in order. A clone may pass the step running on its source if the tokens it takes are committed.
- A forward that fails changes nothing. The batch is halved until the culprit is alone; that step fails, the others go
  on.

One thread calls everything here.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from redis import Redis

from tokenloom.native_ext.engine import Engine, Entry, Output
from tokenloom.schemas.errors import ErrorBody, TokenloomError
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.log import pack
from tokenloom.schemas.requests import CloneRequest, StepRequest

from .admission import Admission
from .endings import ended_before_it_began, interruption_error, raise_if_barred, refusal, remembered
from .engines import load_engine
from .fairness import in_turn
from .jobs.claimed import Claimed, Interruption, Outcomes
from .logs import about
from .operations import Desk, Proposal, propose
from .planning import Planner
from .residency import Residency
from .restore import Restorer
from .scheduler import Share
from .session import Session
from .session_table import SessionTable
from .settings import WorkerSettings
from .stats import Stats
from .step import Step
from .store import Store, Write, Written
from .texts import Texts
from .waiting import Waiting

log = logging.getLogger("rq.worker")


class Cycle:
    """One worker's sessions, their jobs, and the engine."""

    def __init__(
        self, engine: Engine, texts: Texts, store: Store, outcomes: Outcomes, settings: WorkerSettings, worker: str
    ) -> None:
        self.engine = engine
        self.store = store
        self.settings = settings
        self.worker = worker
        self.figures = Stats()
        self.residency = Residency(engine)
        self.table = SessionTable(store, self.residency, outcomes, settings.max_waiting_per_session)
        self._outcomes = outcomes
        self._admission = Admission(engine.geometry, texts, store, self.residency)
        self._planner = Planner(self.residency, settings)
        self._desk = Desk(self.table.sessions, self.residency, settings, outcomes, engine.geometry.fingerprint)
        self._running: list[Step] = []
        self._accepting = True
        self._ended = 0.0
        self._housekeeping = 0.0

    @classmethod
    def start(
        cls,
        settings: WorkerSettings,
        keys: Keys,
        connection: Redis,
        outcomes: Outcomes,
        worker: str,
        incarnation: str,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Cycle:
        """Load the engine and the model's text. Raises SettingsError or ModelError."""
        engine = load_engine(settings)
        store = Store(connection, keys, f"{worker}#{incarnation}", settings, stopping)
        return cls(engine, Texts(engine.metadata), store, outcomes, settings, worker)

    def restore(self) -> None:
        """Read the session table a worker of this name left; rebuild cells now if the settings say so."""
        self.figures.restored_tokens = Restorer(self.store, self.table, self.residency, self.worker).restore(
            eager=self.settings.restore == "eager"
        )

    # -- what the queue side calls -----------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Jobs taken and not ended."""
        return self.table.jobs

    @property
    def room(self) -> int:
        """How many more jobs may be taken now."""
        return max(0, self.settings.max_claimed - self.active) if self._accepting else 0

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Accept jobs, in the order in which they were queued."""
        for job in claimed:
            if job.session is None or job.epochs.get(job.session, -1) < 0:
                error = job.refusal or _not_to_be_had(job.session)
                self.figures.refuse(error, job.session, job.id)
                self._outcomes.fail(job, error)
        self.table.take([job for job in claimed if job.session is not None and job.epochs.get(job.session, -1) >= 0])
        self._running = [step for step in self._running if step.session.running is step]

    def interrupt(self, job: str, why: Interruption) -> None:
        """End a job at the next turn."""
        waiting = self.table.find(job)
        if waiting is not None:
            waiting.interrupted = why

    def turn(self) -> bool:
        """One cycle. False when there was nothing to do."""
        # a busy worker's cycle begins where the last one ended: claiming and all else between two turns counts
        began = self._ended or time.perf_counter()
        self._housekeep()
        ended = self._end_unwanted()
        admitted = self._admit()
        shares, settled = self._plan()
        if not shares:
            self._save_table()
            self._ended = 0.0
            return ended or admitted or settled
        before = time.perf_counter()
        outputs = self._forward(shares)
        forward = time.perf_counter() - before
        self._commit(shares, outputs)
        self._ended = time.perf_counter()
        self.figures.cycle(shares, forward, self._ended - began)
        return True

    def stop_accepting(self) -> None:
        """Begin no job that is not running."""
        self._accepting = False

    def surrender(self) -> list[Claimed]:
        """Give up every unfinished job, for whoever takes it next: all it did is committed.

        Sessions stay ours until the lease ends, so that no newer job of theirs overtakes these.
        """
        self._save_table()
        return self.table.unfinished()

    def forget(self, sessions: Iterable[str] | None = None) -> None:
        """The lease was lost: drop these sessions (None: all) and their jobs, and touch nothing in Redis."""
        names = list(self.table.sessions) if sessions is None else list(sessions)
        for name in names:
            self._lose(name)

    def reborn(self, incarnation: str) -> None:
        """Own sessions as this incarnation of the worker from now on. Called after ``forget(None)``."""
        self.store.owner = f"{self.worker}#{incarnation}"

    def stats(self) -> dict[str, int | float | str]:
        """Figures for the heartbeat, all counted since start unless named otherwise."""
        return self.figures.snapshot(self.engine, self.residency, len(self._running), self.active)

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def _housekeep(self) -> None:
        """About once a second: let go of sessions that nobody uses."""
        if time.monotonic() >= self._housekeeping:
            self._housekeeping = time.monotonic() + 1.0
            self.table.release_idle()
            if self.settings.idle_ttl:
                self.table.expire(self.settings.idle_ttl)

    # -- ending what should not go on --------------------------------------------------------------------------------

    def _end_unwanted(self) -> bool:
        """End running steps that were interrupted or are past their deadline. True when there were any."""
        now = time.time()
        ended = []
        for step in self._running:
            waiting = self.table.find(step.id)
            why = waiting.interrupted if waiting is not None else None
            if why is not None:
                step.finish("timeout" if why == "timeout" else "cancelled", interruption_error(why))
                ended.append(step)
            elif step.deadline is not None and now >= step.deadline:
                step.finish("timeout")
                ended.append(step)
        if ended:
            self._write_steps(ended)
        return bool(ended)

    # -- admitting ---------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Run every job whose turn it is, wave after wave, at most one a session in each. True when there were any."""
        admitted = False
        while True:
            proposals: list[Proposal] = []
            begun: list[tuple[Step, Write]] = []
            touched: set[str] = set()
            suspect = None
            for waiting in self._in_turn():
                names = waiting.names
                if not touched.isdisjoint(names):
                    continue
                if not self._may_begin(waiting, begun):
                    continue
                if self._planner.suspicious(waiting):
                    if touched:
                        continue  # a wave of its own follows
                    suspect = waiting
                    self.store.mark_suspect(self.worker, waiting.id)
                touched.update(names)
                admitted = True
                self._admit_one(waiting, proposals, begun)
                if suspect is not None:
                    break
            if not touched:
                return admitted
            self._carry_out(proposals, begun)
            if suspect is not None:
                self.store.mark_suspect(self.worker, None)

    def _in_turn(self) -> list[Waiting]:
        """Jobs whose turn has come: the tenant with the fewest running steps first."""
        running = Counter(step.tenant for step in self._running)
        return in_turn(self.table.next_jobs(), lambda waiting: waiting.tenant, running)

    def _may_begin(self, waiting: Waiting, begun: Sequence[tuple[Step, Write]]) -> bool:
        if waiting.interrupted or waiting.settled:
            return True
        session = self.table.sessions[waiting.names[0]]
        request = waiting.claimed.request
        if session.running is not None:
            passes = isinstance(request, CloneRequest) and request.upto is not None and request.upto <= session.length
            return passes and self._accepting
        if not self._accepting:
            return False
        return not isinstance(request, StepRequest) or self._has_room(waiting.tenant, begun)

    def _has_room(self, tenant: str, begun: Sequence[tuple[Step, Write]]) -> bool:
        """Whether one more step may run, in all and for its tenant, besides those about to begin."""
        active = [step.tenant for step in self._running] + [step.tenant for step, _ in begun]
        most = self.settings.max_active_per_tenant
        return len(active) < self.settings.max_active and (most == 0 or active.count(tenant) < most)

    def _admit_one(self, waiting: Waiting, proposals: list[Proposal], begun: list[tuple[Step, Write]]) -> None:
        session = self.table.sessions[waiting.names[0]]
        try:
            if waiting.settled:
                proposals.append(remembered(waiting, self._outcomes))
                return
            raise_if_barred(waiting, self.settings.max_deaths)
            if not isinstance(waiting.claimed.request, StepRequest):
                proposals.append(propose(waiting, session, self._desk))
                return
            early = ended_before_it_began(waiting, session, self._outcomes, self._desk.fingerprint)
            if early is not None:
                proposals.append(early)
                return
            step, write = self._admission.begin(waiting, session)
        except TokenloomError as error:
            proposals.append(self._refused(waiting, session, error))
        except Exception as error:  # a job must never take the worker with it
            known = about(session.id, waiting.id)
            log.exception("tokenloom: job %s: unexpected error before its first forward", waiting.id, extra=known)
            body = ErrorBody(code="internal", message=f"{type(error).__name__}: {error}")
            proposals.append(self._refused(waiting, session, TokenloomError(body)))
        else:
            if write is None:
                self.figures.resume(step)
                self._start(step)
            else:
                begun.append((step, write))

    def _refused(self, waiting: Waiting, session: Session, error: TokenloomError) -> Proposal:
        self.figures.refuse(error, session.id, waiting.id)
        return refusal(waiting, session, error, self._outcomes)

    def _carry_out(self, proposals: list[Proposal], begun: list[tuple[Step, Write]]) -> None:
        writes = [write for proposal in proposals for write in proposal.writes] + [write for _, write in begun]
        answers = iter(self.store.write(writes)) if writes else iter(())
        done = [proposal for proposal in proposals if self._held([(w, next(answers)) for w in proposal.writes])]
        begins = [(step, write, next(answers)) for step, write in begun]
        for proposal in self._completed(done):
            proposal.apply()
            self.table.end(proposal.waiting)
            proposal.end()
        self.table.release_unopened(proposal.waiting for proposal in proposals)
        for step, write, answer in begins:
            if self._held([(write, answer)]):
                step.session.log.frombytes(write.append)
                self._start(step)
                if answer.cancelled and step.reason is None:
                    step.finish("cancelled")
                    self._write_steps([step])

    def _completed(self, proposals: list[Proposal]) -> list[Proposal]:
        """Those of which the last write holds as well, or that have none."""
        writes = [proposal.last for proposal in proposals if proposal.last is not None]
        answers = iter(self.store.write(writes)) if writes else iter(())
        return [p for p in proposals if p.last is None or self._held([(p.last, next(answers))])]

    def _start(self, step: Step) -> None:
        self.table.start(step)
        self._running.append(step)
        step.settle()
        if step.reason is not None:
            self._write_steps([step])

    # -- planning, running, committing -------------------------------------------------------------------------------

    def _plan(self) -> tuple[list[Share], bool]:
        """What to run now, and whether steps ended that have nothing to run, or never will fit."""
        shares, idle, hopeless = self._planner.plan(self._running)
        for step, error in hopeless:
            step.finish("error", error)
        if finished := [*idle, *(step for step, _ in hopeless)]:
            for step in idle:
                step.finish("length")
            self._write_steps(finished)
        return shares, bool(finished)

    def _forward(self, shares: Sequence[Share]) -> list[Output | Exception]:
        """One Output a share, or why its step alone cannot be run."""
        suspect = shares[0].step.id if len(shares) == 1 and self._planner.suspicious(shares[0].step) else None
        if suspect is not None:
            self.store.mark_suspect(self.worker, suspect)
        outputs = self._try(shares)
        if suspect is not None:
            self.store.mark_suspect(self.worker, None)
        return outputs

    def _try(self, shares: Sequence[Share]) -> list[Output | Exception]:
        try:
            return list(self.engine.forward([self._entry(share) for share in shares]))
        except Exception as error:
            self.figures.forward_failed(len(shares), error)
            if len(shares) == 1:
                return [error]
            half = len(shares) // 2
            return [*self._try(shares[:half]), *self._try(shares[half:])]

    @staticmethod
    def _entry(share: Share) -> Entry:
        session = share.step.session
        assert session.sequence is not None
        tokens = session.ids(share.start, share.start + share.count)
        return Entry(session.sequence, tokens, share.step.sampling if share.sample else None)

    def _commit(self, shares: Sequence[Share], outputs: Sequence[Output | Exception]) -> None:
        changed = []
        for share, output in zip(shares, outputs, strict=True):
            step = share.step
            if isinstance(output, Exception):
                message = f"the forward failed on this step: {type(output).__name__}: {output}"
                step.finish("error", ErrorBody(code="engine", message=message))
                self.residency.drop(step.session)
                changed.append(step)
                continue
            self.residency.touch(step.session)
            if output.token is not None:
                step.accept(output.token, output.logprobs)
                changed.append(step)
        if changed:
            self._write_steps(changed)

    def _write_steps(self, steps: Sequence[Step]) -> None:
        """Commit what the steps have in memory, and end those that ended."""
        writes = [step_write(step, self.settings) for step in steps]
        rows = self.residency.changed_rows()
        answers = self.store.write(writes, sequences=rows, worker=self.worker)
        for step, write, answer in zip(steps, writes, answers, strict=True):
            if not self._held([(write, answer)]):
                continue
            step.session.log.frombytes(write.append)
            step.committed()
            if step.reason is not None:
                self._running.remove(step)
                self._step_done(step)
            elif answer.cancelled:
                step.finish("cancelled")
        if again := [step for step in steps if step.reason is not None and step in self._running]:
            self._write_steps(again)

    def _step_done(self, step: Step) -> None:
        waiting = self.table.find(step.id)
        assert waiting is not None
        self.table.end(waiting)
        self.figures.finished(step)
        if step.error is not None:
            self._outcomes.fail(step.claimed, TokenloomError(step.error), waiting.interrupted)
        else:
            self._outcomes.finish(step.claimed, step.result())

    # -- when a write was refused ------------------------------------------------------------------------------------

    def _held(self, written: Sequence[tuple[Write, Written]]) -> bool:
        """Whether every write is in Redis. Sessions whose write was refused are lost or read again."""
        held = True
        for write, answer in written:
            if answer.held:
                if write.writes:
                    write.session.writer = write.job
                continue
            held = False
            if answer.status == "lost":
                self.figures.fence(write.session.id, write.job)
                self._lose(write.session.id)
            else:
                self.figures.read_again(write.session.id, write.job)
                self.table.reread(write.session)
        if not held:
            self._running = [step for step in self._running if step.session.running is step]
        return held

    def _lose(self, name: str) -> None:
        self.table.lose(name)
        self._running = [step for step in self._running if step.session.running is step]

    def _save_table(self) -> None:
        self.store.save_sequences(self.worker, self.residency.changed_rows())


def _not_to_be_had(session: str | None) -> TokenloomError:
    if session is None:
        return TokenloomError.of("invalid", "the job names no session", field="session")
    message = f"session {session!r}: its key holds something else than a session"
    return TokenloomError.of("internal", message, field="session", value=session)


def step_write(step: Step, settings: WorkerSettings) -> Write:
    """The commit of what a step has done since its last one."""
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
