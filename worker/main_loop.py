"""The worker's main loop: read notes, claim, turn the cycle; wait when there is nothing to do; end when it is time."""

# mypy: disable-error-code="no-untyped-call"
# RQ leaves some of what is called here without annotations.
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rq.utils import now

from .jobs.face import CycleFace
from .jobs.outcomes import RedisOutcomes
from .jobs.pulse import Pulse
from .jobs.waiters import Waiters
from .retrying import transient

if TYPE_CHECKING:
    from .batch_worker import BatchWorker

#: Seconds between looks at the queues of an idle worker, and of a busy one. A safety net: whatever comes wakes it.
LOOK_AGAIN = 5.0
LOOK_AGAIN_BUSY = 0.1

#: Seconds between claims while a forward runs: each claim, and what begins after it, takes a core from the forward, and
#: the jobs of a burst are for the same next forward whether they are claimed one by one or together.
GATHER = 0.004


@dataclass(frozen=True, slots=True)
class Limits:
    """RQ's options that end a worker by themselves."""

    burst: bool = False
    max_jobs: int | None = None
    max_idle_time: int | None = None


class MainLoop:
    """One run, from birth to the decision to end. What is unfinished then is for the caller to give back."""

    def __init__(
        self,
        worker: BatchWorker,
        cycle: CycleFace,
        outcomes: RedisOutcomes,
        pulse: Pulse,
        waiters: Waiters,
        limits: Limits,
    ) -> None:
        self._worker = worker
        self._cycle = cycle
        self._outcomes = outcomes
        self._pulse = pulse
        self._waiters = waiters
        self._limits = limits
        self._stopping = False
        self._looked = 0.0

    def run(self) -> None:
        """Until a signal, a limit, or an exception of the cycle."""
        worker, cycle = self._worker, self._cycle
        idle_since = time.monotonic()
        while not self._stopped():
            came = self._take()
            self._while_in_the_air()
            worked = cycle.turn()
            for claimed in worker.active.expired(time.monotonic()):
                cycle.interrupt(claimed.id, "timeout")
            if worker.show(cycle):
                self._pulse.soon()
            if came or worked or cycle.active:
                idle_since = time.monotonic()
                if not (came or worked):
                    worker.notes.wait(0.05)
            elif not self._stopping:
                idle = time.monotonic() - idle_since
                if self._limit_reached(idle):
                    return
                self._wait_for_jobs(idle)

    def _stopped(self) -> bool:
        worker, cycle = self._worker, self._cycle
        worker.read_notes(cycle)
        if worker.intake.lost:
            worker.live_again(cycle)
        if worker.should_run_maintenance_tasks:
            self._maintain()
        if worker.stop_requested and not self._stopping:
            self._stopping = True
            worker.begin_stop(cycle)
        if self._stopping and (cycle.active == 0 or worker.time_is_up()):
            worker.log.info("Worker %s: stopping on request", worker.name)
            return True
        return False

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self._worker.stop_requested or time.monotonic() < self._pulse.polite_until:
            return 0
        most = self._cycle.room
        if self._limits.max_jobs is not None:
            most = min(most, self._limits.max_jobs - self._worker.intake.taken)
        return most

    def _take(self) -> bool:
        """Claim what there is room for, unless the waiters say that there is nothing. Whether anything came."""
        now = time.monotonic()
        if self._waiters.watching and now < self._looked + LOOK_AGAIN_BUSY:
            return False
        self._looked = now
        jobs = self._worker.intake.claim(self._room())
        if jobs:
            self._cycle.take(jobs)
        return bool(jobs)

    def _while_in_the_air(self) -> None:
        """While a forward runs: begin and end what is to, so that the next one goes by it. A landing leaves a note."""
        worker, cycle = self._worker, self._cycle
        watch = True
        while cycle.in_the_air and not worker.intake.lost:
            cycle.admit()
            if watch and self._room() > 0 and not worker.intake.suspended:
                self._waiters.arm()
            worker.notes.wait(1.0)
            early = self._looked + GATHER - time.monotonic()
            if early > 0 and cycle.in_the_air:
                worker.notes.wait(early)  # or until it lands
            if cycle.in_the_air:
                worker.read_notes(cycle)
                # an alarm that brings nothing is not believed again before the next forward
                watch = self._take()

    def _limit_reached(self, idle: float) -> bool:
        worker, limits = self._worker, self._limits
        if limits.max_jobs is not None and worker.intake.taken >= limits.max_jobs:
            worker.log.info("Worker %s: finished executing %d jobs, quitting", worker.name, worker.intake.taken)
            return True
        if limits.burst:
            return self._burst_is_over()
        if limits.max_idle_time is not None and idle >= limits.max_idle_time:
            worker.log.info("Worker %s: idle for %d seconds, quitting", worker.name, limits.max_idle_time)
            return True
        return False

    def _burst_is_over(self) -> bool:
        worker, intake = self._worker, self._worker.intake
        if intake.suspended:
            worker.log.info("Worker %s: suspended in burst mode, exiting", worker.name)
            worker.log.info("Worker %s: note: there could still be unfinished jobs on the queue", worker.name)
            return True
        if self._outcomes.pending:  # an end may enqueue dependents
            self._outcomes.flush(1.0)
            return False
        if intake.uncertain or time.monotonic() < max(intake.not_before, self._pulse.polite_until):
            worker.notes.wait(0.05)
            return False
        if any(worker.connection.llen(key) for key in worker.lists()):
            return False
        worker.log.info("Worker %s: done, quitting", worker.name)
        return True

    def _wait_for_jobs(self, idle: float) -> None:
        worker, intake, wait = self._worker, self._worker.intake, LOOK_AGAIN
        if self._limits.burst or intake.lost:
            return
        off = max(intake.not_before, self._pulse.polite_until) - time.monotonic()
        if intake.suspended:
            wait = 1.0
        elif off > 0:
            wait = off
        else:
            self._waiters.arm()
        if self._limits.max_idle_time is not None:
            wait = max(0.0, min(wait, self._limits.max_idle_time - idle))
        worker.notes.wait(wait)

    def _maintain(self) -> None:
        worker = self._worker
        try:
            worker.run_maintenance_tasks()
        except Exception as error:
            if not transient(error):
                raise
            worker.contact.lost(error)
            worker.last_cleaned_at = now()  # type: ignore[assignment]
