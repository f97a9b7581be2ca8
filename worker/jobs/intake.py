"""Taking jobs for the main thread: how many, in which order, and what to do when Redis does not answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import shuffle

from rq.logutils import blue, green
from rq.queue import Queue
from rq.worker import BaseWorker, DequeueStrategy

from ..logs import about, printable
from ..retrying import FIRST_WAIT, LONGEST_WAIT, transient
from .active import ActiveJobs
from .claimed import Claimed
from .contact import Contact
from .source import Claim, JobSource


class Intake:
    """Claims for one worker, in RQ's dequeue strategies and with RQ's log lines.

    ``taken`` counts jobs; ``lost``: the worker was taken for dead; ``suspended``: by `rq suspend`; ``requeued`` and
    ``routed`` count jobs of dead workers put back, and jobs handed to their session's owner.
    """

    def __init__(self, worker: BaseWorker, source: JobSource, active: ActiveJobs, contact: Contact) -> None:
        self.taken = 0
        self.requeued = 0
        self.routed = 0
        self.lost = False
        self.suspended = False
        #: time.monotonic() before which Redis is left alone.
        self.not_before = 0.0
        self._worker = worker
        self._source = source
        self._active = active
        self._contact = contact
        self._recall_due = False
        self._pause = FIRST_WAIT

    @property
    def uncertain(self) -> bool:
        """Whether the answer of the last claim was lost, so that what it took is to be put back first."""
        return self._recall_due

    def claim(self, most: int) -> list[Claimed]:
        """Up to ``most`` jobs, now active. None while Redis is away: that is not an error here."""
        if most <= 0 or time.monotonic() < self.not_before:
            return []
        asked = time.monotonic()
        strategy = self._worker._dequeue_strategy
        if strategy == DequeueStrategy.RANDOM:
            shuffle(self._worker._ordered_queues)
        if self._active.dropped:
            self._active.dropped, self._recall_due = False, True
        try:
            if self._recall_due:
                self._source.recall(self._active.known())
                self._recall_due = False
            claim = self._source.claim(
                most, self._worker._ordered_queues, in_turn=strategy == DequeueStrategy.ROUND_ROBIN
            )
        except Exception as error:
            if not transient(error):
                raise
            self._recall_due = True
            self._contact.lost(error)
            self.not_before = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, LONGEST_WAIT)
            return []
        self._pause = FIRST_WAIT
        self._contact.made(asked)
        self._note(claim)
        if claim.jobs:
            self._take(claim.jobs)
        return claim.jobs

    def begin_again(self, incarnation: str) -> None:
        """The worker lives again, with nothing."""
        self._source.incarnation = incarnation
        self.lost = self._recall_due = False

    def _note(self, claim: Claim) -> None:
        self.requeued += claim.requeued
        self.routed += claim.routed
        self.lost = self.lost or claim.standing == "lost"
        if claim.standing == "lapsed":
            self.not_before = time.monotonic() + FIRST_WAIT
        if claim.standing == "suspended" and not self.suspended:
            self._worker.log.info("Worker %s: suspended, run `rq resume` to resume", self._worker.name)
        self.suspended = claim.standing == "suspended"

    def _take(self, jobs: Sequence[Claimed]) -> None:
        worker = self._worker
        self.taken += len(jobs)
        self._active.add(jobs)
        for claimed in jobs:
            job = claimed.job
            known = about(claimed.session, job.id)
            origin = green(printable(job.origin))
            if worker.log_job_description:
                what = blue(printable(job.description or ""))
                worker.log.info("Worker %s: %s: %s (%s)", worker.name, origin, what, job.id, extra=known)
            else:
                worker.log.info("Worker %s: %s: %s", worker.name, origin, job.id, extra=known)
        if worker._dequeue_strategy == DequeueStrategy.ROUND_ROBIN:
            last = self._queue_of(jobs[-1])
            if last is not None:
                worker.reorder_queues(reference_queue=last)

    def _queue_of(self, claimed: Claimed) -> Queue | None:
        return next((queue for queue in self._worker.queues if queue.name == claimed.job.origin), None)
