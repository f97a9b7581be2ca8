"""What we override and call of RQ 3.0 has the shape we rely on; a newer RQ must fail here first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import rq.callbacks
import rq.command
import rq.executions
import rq.job_lifecycle
import rq.registry
import rq.scheduler
import rq.timeouts
import rq.worker_registration
from rq.job import Job
from rq.queue import Queue
from rq.worker import BaseWorker

from tokenloom.worker.batch_worker import BatchWorker
from tokenloom.worker.jobs.finalizer import Finalizer
from tokenloom.worker.jobs.guarded import GuardedJob

RELIED_ON: list[tuple[Callable[..., Any], str]] = [
    (
        BaseWorker.work,
        "self burst logging_level date_format log_format max_jobs max_idle_time with_scheduler dequeue_strategy",
    ),
    (BaseWorker.bootstrap, "self logging_level date_format log_format"),
    (BaseWorker.register_birth, "self"),
    (BaseWorker.register_death, "self"),
    (BaseWorker.teardown, "self"),
    (BaseWorker.subscribe, "self"),
    (BaseWorker.unsubscribe, "self"),
    (BaseWorker.serialize, "self"),
    (BaseWorker.request_stop, "self signum frame"),
    (BaseWorker.request_force_stop, "self signum frame"),
    (BaseWorker.handle_payload, "self message"),
    (BaseWorker._pubsub_exception_handler, "self exc pubsub pubsub_thread"),
    (BaseWorker.request_stop_execution, "self execution_id"),
    (BaseWorker.get_heartbeat_ttl, "self job working_time"),
    (BaseWorker.handle_job_success, "self job queue started_job_registry execution"),
    (BaseWorker.handle_job_failure, "self job queue started_job_registry exc_string execution"),
    (BaseWorker.handle_exception, "self job exc_info"),
    (BaseWorker.cleanup_execution, "self job pipeline execution"),
    (BaseWorker._enqueue_dependents_safely, "self queue job"),
    (BaseWorker._release_slot_safely, "self job"),
    (BaseWorker._set_connection, "self connection"),
    (BaseWorker._start_scheduler, "self burst logging_level date_format log_format"),
    (BaseWorker.reorder_queues, "self reference_queue"),
    (BaseWorker.run_maintenance_tasks, "self"),
    (rq.executions.cleanup_execution, "worker job pipeline execution"),
    (rq.executions.Execution.__init__, "self id job_id connection worker_name"),
    (rq.callbacks.execute_success_callback, "job death_penalty_class result"),
    (rq.callbacks.execute_failure_callback, "job death_penalty_class exc_info"),
    (rq.callbacks.execute_stopped_callback, "job death_penalty_class"),
    (rq.job_lifecycle.format_exc_info, "exc_info"),
    (rq.timeouts.TimerDeathPenalty.__init__, "self timeout exception kwargs"),
    (rq.worker_registration.register, "worker pipeline"),
    (rq.command.parse_payload, "payload"),
    (rq.scheduler.RQScheduler.start, "self"),
    (rq.scheduler.run, "scheduler"),
    (rq.registry.StartedJobRegistry.cleanup, "self timestamp exception_handlers"),
    (Job.restore, "self raw_data"),
    (Queue.enqueue_dependents, "self job exclude_job_id refresh_job_status"),
]


@pytest.mark.parametrize(("function", "parameters"), RELIED_ON, ids=lambda value: getattr(value, "__qualname__", ""))
def test_signature(function: Callable[..., Any], parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


@pytest.mark.parametrize("ours", [BatchWorker, Finalizer])
def test_overrides_take_what_they_override_takes(ours: type[BaseWorker]) -> None:
    for name, method in vars(ours).items():
        theirs = getattr(BaseWorker, name, None)
        if name.startswith("__") or theirs is None or not inspect.isfunction(method):
            continue
        assert list(inspect.signature(method).parameters) == list(inspect.signature(theirs).parameters), name


def test_the_guard_covers_every_way_a_job_runs_code() -> None:
    runs_code = {name for name in dir(Job) if name in ("func", "perform") or name.endswith("_callback")}
    assert {name for name in runs_code if not name.startswith("_")} <= set(vars(GuardedJob))
