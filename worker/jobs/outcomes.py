"""How jobs ended, on the way to Redis: one thread, in order, and never given up while the worker lives."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import WatchError
from rq.job import Job
from rq.timeouts import BaseTimeoutException, JobTimeoutException
from rq.utils import now

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.errors import TokenloomError

from ..retrying import FIRST_WAIT, LONGEST_WAIT, transient
from .active import ActiveJobs
from .claimed import Claimed, Interruption
from .fence import Lost
from .finalizer import ExcInfo, Finalizer
from .guarded import GuardedJob

log = logging.getLogger("rq.worker")

How = Literal["finished", "failed", "stopped", "cancelled"]


@dataclass(slots=True)
class Ending:
    """One job's end. ``text`` and ``ready``: the callbacks have run, and only Redis has to be told."""

    claimed: Claimed
    how: How
    value: Any = None
    error: BaseException | None = None
    text: str = ""
    ready: bool = False
    attempts: int = 0


class RedisOutcomes:
    """The Outcomes of the cycle. ``finish`` and ``fail`` return at once; ``flush`` waits until Redis knows."""

    def __init__(self, finalizer: Finalizer, active: ActiveJobs) -> None:
        self.finished = 0
        self.failed = 0
        self._finalizer = finalizer
        self._active = active
        self._endings: deque[Ending] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tokenloom-outcomes", daemon=True)
        self._thread.start()

    # -- from the cycle ----------------------------------------------------------------------------------------------

    def finish(self, claimed: Claimed, result: Versioned) -> None:
        """The job succeeded; its return value is the result as a plain map without None."""
        self._end(Ending(claimed, "finished", value=result.model_dump(exclude_none=True)))

    def fail(self, claimed: Claimed, error: TokenloomError, interruption: Interruption | None = None) -> None:
        """The job failed, or ended for the reason given; see Outcomes."""
        if interruption == "stopped":
            self._end(Ending(claimed, "stopped"))
        elif interruption == "cancelled":
            self._end(Ending(claimed, "cancelled"))
        elif interruption == "timeout":
            limit = f"Task exceeded maximum timeout value ({claimed.job.timeout} seconds)"
            struck = JobTimeoutException(limit)
            struck.__cause__ = error
            self._end(Ending(claimed, "failed", error=struck))
        else:
            self._end(Ending(claimed, "failed", error=error))

    def drop(self, claimed: Claimed) -> None:
        """Forget the job; Redis is not touched."""
        self._active.dropped = True
        self._active.ended(claimed)

    # -- from the worker ---------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Ends that Redis does not know of yet."""
        return len(self._endings)

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is pending. False when that took longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._endings, timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Stop the thread; what is pending by then stays for whoever takes the jobs next."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> None:
        ending.claimed.job.ended_at = now()
        self._active.ending(ending.claimed)
        with self._changed:
            self._endings.append(ending)
            self._changed.notify_all()

    def _run(self) -> None:
        wait = FIRST_WAIT
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._endings or self._closing)
                if self._closing and (not self._endings or wait > FIRST_WAIT):
                    return
                ending = self._endings[0]
            if self._settle(ending):
                wait = FIRST_WAIT
                self._active.ended(ending.claimed)
                with self._changed:
                    self._endings.popleft()
                    self._changed.notify_all()
            else:
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, LONGEST_WAIT)

    def _settle(self, ending: Ending) -> bool:
        """Tell Redis. False when that is to be tried again."""
        claimed = ending.claimed
        try:
            if ending.attempts:
                self._finalizer.link.ping()
            ending.attempts += 1
            self._store(ending)
        except Lost:
            if ending.attempts > 1:
                return self._follow_up(claimed.job)
            log.info("tokenloom: job %s is another worker's now, or deleted; its end is dropped", claimed.id)
        except BaseTimeoutException:
            return False  # a callback's alarm that struck just after the callback
        except Exception as error:
            if transient(error) or isinstance(error, WatchError):
                if ending.attempts <= 1:
                    log.warning("tokenloom: the end of job %s waits for Redis: %s", claimed.id, error)
                return False
            log.exception("tokenloom: the end of job %s could not be stored", claimed.id)
            return self._forsake(ending, error)
        return True

    def _store(self, ending: Ending) -> None:
        claimed, finalizer = ending.claimed, self._finalizer
        job, execution = claimed.job, claimed.execution
        if not ending.ready:
            brings_callbacks = isinstance(job, GuardedJob) and job.callback_names()
            if brings_callbacks and not finalizer.link.exists(execution.key):
                raise Lost(execution.key)  # before its callbacks run
            self._prepare(ending)
            ending.ready = True
        before = dict(vars(job))
        try:
            if ending.how == "finished":
                finalizer.store_success(job, execution)
                self.finished += 1
            elif ending.how == "cancelled":
                finalizer.store_cancelled(job, execution)
            else:
                finalizer.store_failure(job, execution, ending.text, stopped=ending.how == "stopped")
                self.failed += 1
        except Exception:
            vars(job).update(before)  # retries and repeats were counted down in it
            raise

    def _prepare(self, ending: Ending) -> None:
        """Callbacks: once, whatever happens to the connection afterwards."""
        job = ending.claimed.job
        if ending.how == "finished":
            raised = self._finalizer.succeeded(job, ending.value)
            if raised is not None:
                ending.how, ending.error = "failed", raised[1]
        if ending.how == "failed":
            error = ending.error or RuntimeError("unknown")
            exc_info: ExcInfo = (type(error), error, error.__traceback__)
            ending.text = self._finalizer.failed(job, exc_info)
        elif ending.how == "stopped":
            ending.text = self._finalizer.stopped(job)

    def _follow_up(self, job: Job) -> bool:
        try:
            self._finalizer.follow_up(job)
        except Exception as error:
            if transient(error):
                return False
            log.exception("tokenloom: what depends on job %s could not be enqueued", job.id)
        return True

    def _forsake(self, ending: Ending, error: BaseException) -> bool:
        try:
            self._finalizer.forsake(ending.claimed.job, ending.claimed.execution, error)
        except Lost:
            pass
        except Exception as again:
            if transient(again):
                return False
            log.exception("tokenloom: job %s could not even be failed", ending.claimed.id)
        return True
