"""The cycle: begin what waits, plan, ONE forward, commit. Everything the worker does to sessions happens in here.

- The forward of a cycle runs on a thread of its own, and meanwhile the main thread commits what the cycle before it
  computed, takes jobs and begins them. Only what decides about the next forward comes between two: sampled tokens are
  accepted, which ends steps, and the next batch is planned.
- So a forward never runs more than one cycle ahead of what is committed. What it gives for a step that has ended
  meanwhile, or was lost, is dropped unseen; its cells hold committed tokens alone, like all others.
- Nothing is visible before its write is in Redis, and every write is fenced (lua/commit.lua). A session whose write is
  answered "lost" is dropped without a word: another worker goes on with it.

One thread calls everything here.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from redis import Redis

from tokenloom.native_ext.engine import Engine
from tokenloom.schemas.errors import ErrorBody, TokenloomError
from tokenloom.schemas.keys import Keys

from .admission import Admission
from .commits import Commits
from .dispatch import Dispatch
from .endings import interruption_error
from .engines import load_engine
from .forwards import Forwards
from .jobs.claimed import Claimed, Interruption, Outcomes
from .operations import Desk
from .pipelined import PipelinedEngine
from .planning import Planner
from .residency import Residency
from .restore import Restorer
from .scheduler import Share
from .session_table import SessionTable
from .settings import WorkerSettings
from .stats import Stats
from .store import Store
from .suspects import Suspects
from .texts import Texts

#: Seconds after which a thread that runs Python has to let another: the forward's thread, which needs Python before and
#: after the forward alone, would else wait for 5 ms each time.
SWITCH = 1e-4


class Cycle:
    """One worker's sessions, their jobs, and the engine."""

    def __init__(
        self,
        engine: Engine,
        texts: Texts,
        store: Store,
        outcomes: Outcomes,
        settings: WorkerSettings,
        worker: str,
        landed: Callable[[], None] = lambda: None,
    ) -> None:
        """``landed`` is called after each forward, on another thread."""
        self.engine = PipelinedEngine(engine, landed)
        self.store = store
        self.settings = settings
        self.worker = worker
        self.figures = Stats()
        self.residency = Residency(self.engine)
        self.table = SessionTable(store, self.residency, outcomes, settings.max_waiting_per_session)
        self._outcomes = outcomes
        self._suspects = Suspects(store, worker, settings.max_deaths)
        self._commits = Commits(store, self.table, outcomes, self.figures, settings)
        self._dispatch = Dispatch(
            self.table,
            store,
            self._commits,
            Admission(engine.geometry, texts, store, self.residency),
            Desk(self.table.sessions, self.residency, settings, outcomes, engine.geometry.fingerprint),
            self.figures,
            self.engine,
            self._suspects,
        )
        self._planner = Planner(self.residency, settings, self._suspects)
        self._forwards = Forwards(self.engine, self.figures, self._suspects)
        # a busy worker's cycle goes from landing to landing: claiming and all else between two turns counts
        self._busy_since = 0.0
        self._forward_seconds = 0.0
        self._housekeeping = 0.0
        self._rows_due = 0.0
        self._look_at = 0.0

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
        landed: Callable[[], None] = lambda: None,
    ) -> Cycle:
        """Load the engine and the model's text. Raises SettingsError or ModelError."""
        sys.setswitchinterval(SWITCH)
        engine = load_engine(settings)
        store = Store(connection, keys, f"{worker}#{incarnation}", settings, stopping)
        cycle = cls(engine, Texts(engine.metadata), store, outcomes, settings, worker, landed)
        gc.collect()
        gc.freeze()  # the vocabulary stays: looking through it would take a collection longer than a forward takes
        return cycle

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
        return max(0, self.settings.max_claimed - self.active) if self._dispatch.accepting else 0

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Accept jobs, in the order in which they were queued."""
        for job in claimed:
            if job.session is None or job.epochs.get(job.session, -1) < 0:
                error = job.refusal or _not_to_be_had(job.session)
                self.figures.refuse(error, job.session, job.id)
                self._outcomes.fail(job, error)
        self.table.take([job for job in claimed if job.session is not None and job.epochs.get(job.session, -1) >= 0])
        self._look_at = 0.0  # what came again may be running, and to end

    def interrupt(self, job: str, why: Interruption) -> None:
        """End a job at the next turn."""
        waiting = self.table.find(job)
        if waiting is not None:
            waiting.interrupted = why
            self._look_at = 0.0

    @property
    def in_the_air(self) -> bool:
        """Whether a forward runs, so that ``turn`` would wait for it."""
        return self.engine.in_the_air

    def admit(self) -> bool:
        """End what is to end and begin what may begin, also while a forward runs. True when there was anything."""
        ended = self._end_unwanted()
        begun = self._dispatch.begin()
        if begun:
            self._look_at = 0.0
        return ended or begun

    def turn(self) -> bool:
        """One cycle. False when there was nothing to do."""
        if not self._busy_since:
            self._busy_since, self._forward_seconds = time.perf_counter(), self.engine.stats.seconds
        self._housekeep()
        worked = self.admit()
        landed, shares = self._forwards.launched, self._land()
        if self._suspects.among(self.table.running):
            self._commits.commit(self.table.running)  # nothing else may be at work while a suspect runs
        rows = self._changed_rows()
        launched = self._launch()
        committed = self._commits.commit(self.table.running, rows, self.worker)
        for share in shares:
            self.residency.touch(share.step.session)
        if not launched:
            self._rest(counts=landed)
        return worked or landed or launched or committed

    def stop_accepting(self) -> None:
        """Begin no job that is not running."""
        self._dispatch.accepting = False

    def surrender(self) -> list[Claimed]:
        """Give up every unfinished job, for whoever takes it next; what a forward in the air computes is dropped.

        Sessions stay ours until the lease ends, so that no newer job of theirs overtakes these.
        """
        self.store.save_sequences(self.worker, self.residency.changed_rows())
        return self.table.unfinished()

    def forget(self, sessions: Iterable[str] | None = None) -> None:
        """The lease was lost: drop these sessions (None: all) and their jobs, and touch nothing in Redis."""
        names = list(self.table.sessions) if sessions is None else list(sessions)
        for name in names:
            self.table.lose(name)

    def reborn(self, incarnation: str) -> None:
        """Own sessions as this incarnation of the worker from now on. Called after ``forget(None)``."""
        self.store.owner = f"{self.worker}#{incarnation}"

    def stats(self) -> dict[str, int | float | str]:
        """Figures for the heartbeat, all counted since start unless named otherwise."""
        return self.figures.snapshot(self.engine, self.residency, len(self.table.running), self.active)

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

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _end_unwanted(self) -> bool:
        """End running steps that were interrupted or are past their deadline. True when there were any."""
        now = time.time()
        if now < self._look_at:
            return False
        ended = []
        for step in self.table.running:
            waiting = self.table.find(step.id)
            why = waiting.interrupted if waiting is not None else None
            if why is not None:
                step.finish("timeout" if why == "timeout" else "cancelled", interruption_error(why))
                ended.append(step)
            elif step.deadline is not None and now >= step.deadline:
                step.finish("timeout")
                ended.append(step)
        self._commits.commit(ended)
        # until the next deadline, an interruption, or a step that begins: no need to look at all of them again
        self._look_at = min((step.deadline or math.inf for step in self.table.running), default=math.inf)
        return bool(ended)

    def _land(self) -> list[Share]:
        """Accept what the forward in the air gives, if there is one: the shares that were run and still count."""
        if not self._forwards.launched:
            return []
        landed = self._forwards.land()
        for share, outcome in landed:
            step = share.step
            if isinstance(outcome, Exception):
                message = f"the forward failed on this step: {type(outcome).__name__}: {outcome}"
                step.finish("error", ErrorBody(code="engine", message=message))
                self.residency.drop(step.session)
            elif outcome.token is not None:
                step.accept(outcome.token, outcome.logprobs)
        now, seconds = time.perf_counter(), self.engine.stats.seconds
        shares = [share for share, _ in landed]
        self.figures.cycle(shares, seconds - self._forward_seconds, now - self._busy_since)
        self._busy_since, self._forward_seconds = now, seconds
        return shares

    def _launch(self) -> bool:
        """Plan and begin the next forward. False when there is nothing to run."""
        shares, idle, hopeless = self._planner.plan([step for step in self.table.running if step.reason is None])
        for step in idle:
            step.finish("length")
        for step, error in hopeless:
            step.finish("error", error)
        if shares:
            self._forwards.launch(shares)
        return bool(shares)

    def _changed_rows(self) -> dict[str, bytes | None]:
        """Once a second, what has changed in the persisted session table. Needs the engine, so ahead of a launch."""
        if time.monotonic() < self._rows_due:
            return {}
        self._rows_due = time.monotonic() + 1.0
        return self.residency.changed_rows()

    def _rest(self, *, counts: bool) -> None:
        """Nothing is to run."""
        self.store.save_sequences(self.worker, self.residency.changed_rows())
        if counts:
            self.figures.rest(time.perf_counter() - self._busy_since)
        self._busy_since = 0.0


def _not_to_be_had(session: str | None) -> TokenloomError:
    if session is None:
        return TokenloomError.of("invalid", "the job names no session", field="session")
    message = f"session {session!r}: its key holds something else than a session"
    return TokenloomError.of("internal", message, field="session", value=session)
