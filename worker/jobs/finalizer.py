"""How a job ends in RQ: results, registries, retries, callbacks, dependents, groups, repeats, webhooks, slots.

All of it is RQ's own code, called on a BaseWorker that exists for this alone: the part of RQ's ``_finalize_success``
and ``_finalize_failure`` that must happen once is kept apart from the part that may be repeated when a connection was
lost.
"""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from redis import Redis
from redis.client import Pipeline
from rq.callbacks import execute_failure_callback, execute_stopped_callback, execute_success_callback
from rq.executions import Execution
from rq.executions import cleanup_execution as rq_cleanup_execution
from rq.job import Job, JobStatus
from rq.job_lifecycle import format_exc_info
from rq.logutils import blue, green
from rq.queue import Queue
from rq.registry import CanceledJobRegistry
from rq.timeouts import TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker

from tokenloom.schemas.keys import Keys
from tokenloom.schemas.serializer import MsgpackSerializer

from ..logs import printable
from .fence import FencedLink

#: What a job's hash holds about its present run.
RUN_FIELDS = ("tokenloom_deaths", "tokenloom_alone", "tokenloom_stop", "tokenloom_past")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class ThreadDeathPenalty(TimerDeathPenalty):
    """A callback's time limit without SIGALRM, which only the main thread has.

    RQ's own writes the message into the exception class for good; this one raises a subclass made for the occasion.
    """

    def __init__(self, timeout: int, exception: type[Exception], **options: Any) -> None:
        super().__init__(
            timeout, type(exception.__name__, (exception,), {"__module__": exception.__module__}), **options
        )


class Finalizer(BaseWorker):
    """Ends jobs in Redis in the name of the worker that claimed them."""

    death_penalty_class = ThreadDeathPenalty

    def __init__(self, link: Redis, keys: Keys, worker: BaseWorker) -> None:
        """``worker``: whose name, settings and exception handlers to use."""
        self.link = link
        self.fenced = FencedLink(link)
        super().__init__(
            [],
            name=worker.name,
            connection=self.fenced,
            default_result_ttl=worker.default_result_ttl,
            job_class=worker.job_class,
            queue_class=worker.queue_class,
            log_job_description=worker.log_job_description,
            disable_default_exception_handler=worker.disable_default_exception_handler,
            prepare_for_work=False,
            serializer=MsgpackSerializer,
        )
        self._exc_handlers = worker._exc_handlers
        self._jobs_key = keys.worker_jobs(worker.name)

    def _set_connection(self, connection: Redis) -> Redis:
        """As it is: RQ would let it wait for minutes."""
        return connection

    def cleanup_execution(self, job: Job, pipeline: Pipeline, execution: Execution | None = None) -> None:
        """RQ's, and the job leaves the list of those to be put back should this worker die."""
        rq_cleanup_execution(self, job, pipeline, execution)
        pipeline.zrem(self._jobs_key, job.id)
        pipeline.hdel(job.key, *RUN_FIELDS)
        if job.worker_name is None:
            pipeline.hdel(job.key, "worker_name")

    def _enqueue_dependents_safely(self, queue: Queue, job: Job) -> None:
        """Not safely: a lost connection is for the caller to try again, instead of leaving dependents behind."""
        queue.enqueue_dependents(job)

    def queue_of(self, job: Job) -> Queue:
        """The queue the job came from."""
        return self.queue_class(
            job.origin,
            connection=self.link,
            job_class=self.job_class,
            serializer=self.serializer,
            death_penalty_class=self.death_penalty_class,
        )

    # -- once --------------------------------------------------------------------------------------------------------

    def succeeded(self, job: Job, value: Any) -> ExcInfo | None:
        """Run the success callback. What it raised fails the job, as in RQ."""
        job._result = value
        job._status = JobStatus.FINISHED
        try:
            execute_success_callback(job, self.death_penalty_class, value)
        except Exception as error:
            return (type(error), error, error.__traceback__)
        return None

    def failed(self, job: Job, exc_info: ExcInfo) -> str:
        """Run the failure callback and the exception handlers; the text to store.

        A callback that raises becomes the failure.
        """
        job._status = JobStatus.FAILED
        try:
            execute_failure_callback(job, self.death_penalty_class, *exc_info)
        except Exception as error:
            exc_info = (type(error), error, error.__traceback__)
        try:
            self.handle_exception(job, *exc_info)
        except Exception:
            self.log.exception("Worker %s: an exception handler raised for job %s", self.name, job.id)
        return format_exc_info(exc_info)

    def stopped(self, job: Job) -> str:
        """Run the stopped callback; the text to store."""
        self.log.warning("Worker %s: job %s stopped by user, moving job to FailedJobRegistry", self.name, job.id)
        try:
            execute_stopped_callback(job, self.death_penalty_class)
        except Exception:
            self.log.exception("Worker %s: stopped callback for job %s raised", self.name, job.id)
        return "Job stopped by user."

    # -- again, if need be -------------------------------------------------------------------------------------------

    def store_success(self, job: Job, execution: Execution) -> None:
        """Result, registries, dependents, repeats, slot. Raises Lost, or what Redis answered."""
        queue = self.queue_of(job)
        self.fenced.fence = execution.key
        if job.repeats_left:
            job.worker_name = None  # as below: it waits to run again
        self.handle_job_success(
            job=job, queue=queue, started_job_registry=queue.started_job_registry, execution=execution
        )
        job.send_webhooks(JobStatus.FINISHED)
        known = {"job": job.id}
        origin = green(printable(job.origin))
        self.log.info("Worker %s: %s: %s (%s)", self.name, origin, blue("Job OK"), job.id, extra=known)
        result_ttl = job.get_result_ttl(self.default_result_ttl)
        if self.log_result_lifespan and result_ttl > 0:
            said = "Worker %s: job %s result is kept for %s seconds"
            self.log.info(said, self.name, job.id, result_ttl, extra=known)

    def store_failure(self, job: Job, execution: Execution, text: str, *, stopped: bool = False) -> None:
        """Retry or failure: result, registries, dependents, slot. Raises Lost, or what Redis answered."""
        queue = self.queue_of(job)
        self.fenced.fence, self.fenced.trouble = execution.key, None
        job.worker_name = None  # RQ sends a stop of a job that waits for its next try to whoever it names
        self._stopped_job_id = job.id if stopped else None
        self.handle_job_failure(
            job=job, queue=queue, started_job_registry=queue.started_job_registry, exc_string=text, execution=execution
        )
        if self.fenced.trouble is not None:
            raise self.fenced.trouble

    def store_cancelled(self, job: Job, execution: Execution) -> None:
        """Leave what RQ's cancel or delete has left; a job that still counts as started becomes canceled."""
        self.fenced.fence = execution.key
        job.worker_name = None
        with self.fenced.pipeline() as pipeline:
            pipeline.watch(job.key)
            status = pipeline.hget(job.key, "status")
            pipeline.multi()
            if status == JobStatus.STARTED.value.encode():
                job.set_status(JobStatus.CANCELED, pipeline=pipeline)
                CanceledJobRegistry(job.origin, self.link, job_class=self.job_class, serializer=self.serializer).add(
                    job, pipeline=pipeline
                )
            self.cleanup_execution(job, pipeline=pipeline, execution=execution)
            pipeline.execute()
        job._status = JobStatus.CANCELED
        self._release_slot_safely(job)

    def follow_up(self, job: Job) -> None:
        """What comes after the transaction, again: its answer was lost, so nobody knows how far it came. Idempotent."""
        queue = self.queue_of(job)
        raw = self.link.hget(job.key, "status")
        status = JobStatus(raw.decode()) if isinstance(raw, bytes) else JobStatus.FINISHED
        job._status = status
        if raw is not None and status in (JobStatus.FAILED, JobStatus.FINISHED, JobStatus.STOPPED):
            queue.enqueue_dependents(job)
        queue.ready_job_registry.cleanup()
        self._release_slot_safely(job)

    def forsake(self, job: Job, execution: Execution, error: BaseException) -> None:
        """Mark a job as failed with as little as can be: RQ's own way was refused by Redis."""
        text = "".join(traceback.format_exception(error))
        plain = self.job_class(job.id, connection=self.link, serializer=self.serializer)
        plain.restore({b"data": b"", b"status": b"started", b"origin": job.origin.encode()})
        plain.started_at = plain.ended_at = now()
        self.store_failure(plain, execution, text)
