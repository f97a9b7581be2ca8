"""BatchWorker: RQ's worker, as its users know it, around the cycle that runs every taken job in shared batches.

    rq worker -w tokenloom.worker.BatchWorker -S tokenloom.schemas.MsgpackSerializer steps

The main thread claims jobs, turns the cycle, and does nothing else. Beside it run: the pulse (lease, dead workers,
cancelled jobs), the outcomes (how jobs ended, on their way to Redis), RQ's pub/sub thread (stop-job and its kin), and
one waiting thread a queue. They hand the main thread everything through one queue of notes, and so do signal handlers,
which for that reason do nothing but leave one.
"""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from redis import Redis
from redis.client import PubSub, PubSubWorkerThread
from rq.command import parse_payload
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.job import Job
from rq.logutils import setup_loghandlers
from rq.utils import now, utcformat
from rq.worker import BaseWorker, DequeueStrategy, WorkerStatus
from rq.worker_registration import register

from tokenloom.native_ext.engine import EngineError
from tokenloom.schemas.jobs import HOW_TO_RUN
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.serializer import MsgpackSerializer

from . import logs
from .durability import Durability
from .jobs.active import ActiveJobs
from .jobs.claimed import Claimed, Outcomes
from .jobs.contact import Contact
from .jobs.face import CycleFace
from .jobs.finalizer import Finalizer
from .jobs.guarded import guarded
from .jobs.intake import Intake
from .jobs.lease import Lease, NameTaken
from .jobs.links import private_link
from .jobs.notes import Interrupt, LeaseLost, Notes
from .jobs.outcomes import RedisOutcomes
from .jobs.pulse import Findings, Pulse, rq_ttl_of
from .jobs.scheduling import SpawnedScheduler
from .jobs.source import ABANDONED_AFTER, JobSource
from .jobs.waiters import Waiters
from .main_loop import Limits, MainLoop
from .retrying import GaveUp, Retrying, transient
from .settings import SettingsError, WorkerSettings, load_settings

#: Oldest server: BLMOVE came with it.
OLDEST_REDIS = (6, 2, 0)


class StartupError(SystemExit):
    """The worker cannot start, for a reason a person can mend. Ends the process with code 1 and this one message."""


class LoadStopped(BaseException):
    """A signal came while the model was loaded. Raised by its handler, wherever that strikes: nothing has happened yet
    that would have to be ended in order. No Exception, so that whatever loads does not take it for trouble of its own.
    """


class BatchWorker(BaseWorker):
    """Takes every waiting job of its queues, as far as there is room, and runs them together."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.pid is None:  # a record of some worker, as `rq info` makes them
            return
        if self.serializer is not MsgpackSerializer:
            raise StartupError(
                "tokenloom: this worker reads msgpack only, and RQ's default is pickle. Start it with:\n  " + HOW_TO_RUN
            )
        try:
            self.settings: WorkerSettings = load_settings()
        except SettingsError as error:
            raise StartupError(f"tokenloom: {error}") from None
        self.keys = Keys(self.settings.namespace)
        self.job_class = guarded(self.job_class, self.settings.callbacks, self.settings.webhook_hosts)
        for queue in self.queues:
            queue.job_class = self.job_class
        self.active = ActiveJobs()
        self.executions = self.active.executions
        self.cycle: CycleFace | None = None
        self.notes = Notes()
        self.contact = Contact()
        link = private_link(self.connection)
        self._lease = Lease(link, self.keys, self.name, self.settings.lease)
        self._finalizer = Finalizer(private_link(self.connection), self.keys, self)
        self._source = JobSource(
            link, self.keys, self.name, self._lease.incarnation, self.job_class, self._finalizer.link
        )
        self.intake = Intake(self, self._source, self.active, self.contact)
        self._pulse_link = private_link(self.connection)
        self._durability = Durability(self._pulse_link)
        self._loading = False
        self._stop_at: float | None = None
        self._cold = False
        self._usurped = False
        self._stats: Mapping[str, int | float | str] = {}
        self._stats_at = 0.0
        self._title = ""

    # -- from birth to death -----------------------------------------------------------------------------------------

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: DequeueStrategy = DequeueStrategy.DEFAULT,
    ) -> bool:
        """RQ's options, RQ's meaning; whether any job was taken. ``max_jobs`` counts jobs taken.

        Raises StartupError for what a person can mend, NameTaken (a ValueError) when a living worker has the name.
        """
        self._dequeue_strategy = dequeue_strategy
        logs.use(self.settings.log, self.name)
        setup_loghandlers(logging_level, date_format, log_format, name="rq.worker")
        # What the engine logs goes where RQ's lines go; without a handler, Python shows warnings only.
        setup_loghandlers(self.log.getEffectiveLevel(), date_format, log_format, name="tokenloom")
        self._install_signal_handlers()
        if self.get_redis_server_version() < OLDEST_REDIS:
            found, needed = (".".join(map(str, version)) for version in (self.get_redis_server_version(), OLDEST_REDIS))
            raise StartupError(f"tokenloom: Redis is {found}; {needed} or newer is needed")
        self._durability.look()
        self._say_back(self._lease.bury_last())  # before the load, during which a stop of its jobs would reach nobody
        outcomes = RedisOutcomes(self._finalizer, self.active)
        try:
            self.cycle = cycle = self._open_cycle(outcomes)
        except LoadStopped:
            outcomes.close()
            self.log.info("Worker %s: stopped on request while the model was loaded", self.name)
            return False
        crashed = False
        pulse = waiters = None
        try:
            self.bootstrap(logging_level, date_format, log_format)
            if with_scheduler:
                self._start_scheduler(burst, logging_level, date_format, log_format)
            pulse = self._start_pulse()
            waiters = Waiters(self.connection, self.lists(), self.contact, self.notes.leave)
            cycle.restore()
            MainLoop(self, cycle, outcomes, pulse, waiters, Limits(burst, max_jobs, max_idle_time)).run()
        except NameTaken:
            if self.birth_date is None:
                raise
            self._usurped = True
            self.log.error("Worker %s: another process works under this name now, quitting...", self.name)
        except GaveUp as error:
            self.log.error("Worker %s: %s", self.name, error)
        except Exception:
            crashed = True
            self.log.error("Worker %s: found an unhandled exception, quitting...", self.name, exc_info=True)
        finally:
            if waiters is not None:
                waiters.close()
            self._end(cycle, outcomes, pulse, blame=crashed)
        if crashed or self._usurped:
            raise SystemExit(1)
        return bool(self.intake.taken)

    def open_cycle(self, connection: Redis, outcomes: Outcomes, incarnation: str) -> CycleFace:
        """Load the model. Raises SettingsError or EngineError with a message for a person."""
        from .cycle import Cycle

        return Cycle.start(
            self.settings, self.keys, connection, outcomes, self.name, incarnation, self.time_is_up, self.notes.leave
        )

    def register_birth(self) -> None:
        """RQ's, once the name is ours: a dead predecessor's jobs go back first. Waits for Redis should it be away.

        Raises NameTaken, and GaveUp when told to stop meanwhile.
        """
        Retrying(lambda: self._stop_requested)(self._be_born)

    def _be_born(self) -> None:
        self._say_back(self._lease.take(blameless=self.birth_date is not None))
        super().register_birth()

    def _say_back(self, back: int) -> None:
        if back:
            self.log.info("tokenloom: %d jobs of the last worker named %s are back in their queues", back, self.name)

    def serialize(self) -> dict[str, Any]:
        """RQ's record of a worker, and which life of it this is; the scripts look for that."""
        return {**super().serialize(), "tokenloom": self._lease.incarnation}

    def _open_cycle(self, outcomes: RedisOutcomes) -> CycleFace:
        self._loading = True
        try:
            if self._stop_requested:
                raise LoadStopped
            return self.open_cycle(private_link(self.connection), outcomes, self._lease.incarnation)
        except (SettingsError, EngineError) as error:
            outcomes.close()
            raise StartupError(f"tokenloom: {error}") from None
        finally:
            self._loading = False

    def _start_pulse(self) -> Pulse:
        findings = Findings(
            lost=lambda: self.notes.leave(LeaseLost(self._lease.incarnation)),
            unregistered=self._register_with_rq,
            interrupt=lambda claimed, why: self.notes.leave(Interrupt(claimed, why)),
            stats=lambda: {
                **self._stats,
                **self._durability.figures(),
                "routed": self.intake.routed,
                "requeued": self.intake.requeued + pulse.requeued,
            },
            state=lambda: self._state,
        )
        pulse = Pulse(
            self._pulse_link,
            self.keys,
            self._lease,
            self.active,
            self.contact,
            findings,
            every=self.settings.heartbeat,
            refresh_every=self.job_monitoring_interval,
            rq_ttl=rq_ttl_of(self.settings.lease, self.worker_ttl),
        )
        pulse.start()
        return pulse

    def _register_with_rq(self) -> None:
        """RQ's record of this worker is gone, though its lease is not: somebody cleaned up."""
        with self.connection.pipeline() as pipeline:
            self.last_heartbeat = now()
            record: dict[Any, Any] = self.serialize()
            pipeline.hset(self.key, mapping=record)
            register(self, pipeline)
            pipeline.expire(self.key, rq_ttl_of(self.settings.lease, self.worker_ttl))
            pipeline.execute()

    def _end(self, cycle: CycleFace, outcomes: RedisOutcomes, pulse: Pulse | None, *, blame: bool) -> None:
        """Give back what is unfinished, in order and with its progress, and leave."""
        born = self.birth_date is not None and not self._usurped
        try:
            cycle.stop_accepting()
            if born and not self.intake.lost:
                unfinished = cycle.surrender()
                if unfinished:
                    self.log.info("tokenloom: %d unfinished jobs go back to the front of their queues", len(unfinished))
        except Exception as error:
            self.log.error("tokenloom: could not save everything while stopping: %s", error)
        if born and not outcomes.flush(5.0):
            self.log.error("tokenloom: %d ended jobs are not in Redis yet; their steps' results are", outcomes.pending)
        outcomes.close()
        if pulse is not None:
            pulse.stop()
        if born:
            self._leave(blame)
        elif self._usurped:  # the records in Redis are the successor's
            if self.scheduler:
                self.stop_scheduler()
            self.unsubscribe()
        cycle.close()

    def _leave(self, blame: bool) -> None:
        for leave in (lambda: self._lease.retire(blame=blame), self.teardown):
            try:
                leave()
            except Exception as error:
                if not transient(error):
                    raise
                self.log.error("tokenloom: Redis is away; the jobs go back when the lease lapses: %s", error)

    # -- notes from other threads ------------------------------------------------------------------------------------

    def lists(self) -> list[str]:
        """Where jobs for this worker can be: its inbox and its queues."""
        return [self.keys.worker_inbox(self.name), *self.queue_keys()]

    @property
    def stop_requested(self) -> bool:
        """Whether a warm shutdown has been asked for."""
        return self._stop_requested

    def read_notes(self, cycle: CycleFace) -> None:
        """Act on what other threads left."""
        for note in self.notes.read():
            if isinstance(note, LeaseLost):
                self.intake.lost = self.intake.lost or note.incarnation == self._lease.incarnation
            elif self.active.get(note.claimed.id) is note.claimed or (
                note.why == "stopped" and self.active.newest(note.claimed) is not None
            ):
                cycle.interrupt(note.claimed.id, note.why)

    def live_again(self, cycle: CycleFace) -> None:
        """This worker was taken for dead: its jobs are others' now. Begin anew under the same name, with nothing."""
        self.log.warning(
            "tokenloom: worker %s was taken for dead; its jobs go on elsewhere, and it begins anew", self.name
        )
        cycle.forget(None)
        for claimed in self.active.snapshot():
            self.active.ended(claimed)
        self._lease.begin_again()
        if not self._cold:
            self.register_birth()
        self.intake.begin_again(self._lease.incarnation)
        cycle.reborn(self._lease.incarnation)

    # -- stopping ----------------------------------------------------------------------------------------------------

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """First signal: warm shutdown. A second one, at least a second later: cold. Nothing else happens in here.

        Raises LoadStopped while the model is loaded.
        """
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            self._shutdown_requested_date = now()
            self._stop_requested = True
        elif time.monotonic() - self._stop_at >= 1.0:
            self._cold = True
        self.notes.leave()
        if self._loading:
            raise LoadStopped

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        """As a second signal."""
        self.request_stop(signum, frame)

    def _install_signal_handlers(self) -> None:
        """Where it is allowed: in the main thread."""
        try:
            signal.signal(signal.SIGINT, self.request_stop)
            signal.signal(signal.SIGTERM, self.request_stop)
        except ValueError:
            self.log.debug("Worker %s: not in the main thread, no signal handlers", self.name)

    def begin_stop(self, cycle: CycleFace) -> None:
        """The warm shutdown begins: nothing new is taken, and what runs gets the grace period."""
        self.handle_warm_shutdown_request()
        cycle.stop_accepting()
        try:
            self.set_shutdown_requested_date()
        except Exception as error:
            self.contact.lost(error)
        if cycle.active:
            self.log.info("tokenloom: %d jobs get %g s to finish", cycle.active, self.settings.grace)

    def time_is_up(self) -> bool:
        """Whether running jobs get no more time, Redis trouble or not."""
        over = self._stop_at is not None and time.monotonic() - self._stop_at >= self.settings.grace
        return self._cold or over

    # -- what RQ's commands ask ----------------------------------------------------------------------------------------

    def handle_payload(self, message: dict[str, Any]) -> None:
        """A command from RQ's channel of this worker; on the pub/sub thread. Nonsense is logged and ignored."""
        try:
            payload = parse_payload(message)
            command = payload["command"]
            if command == "stop-job":
                job = str(payload.get("job_id"))
                self._stop_job(self.active.get(job), job)
            elif command == "stop-execution":
                job, execution = str(payload.get("job_id")), str(payload.get("execution_id"))
                self._stop_job(self.active.of_execution(execution), job, execution)
            elif command == "shutdown":
                self.log.info("Received shutdown command.")
                self.request_stop(signal.SIGINT, None)
            else:
                self.log.warning("tokenloom: command %.64r has no meaning for this worker, ignored", command)
        except Exception:
            self.log.warning("tokenloom: a malformed command was ignored", exc_info=True)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: PubSub, pubsub_thread: PubSubWorkerThread) -> None:
        """Keep the channel through trouble that passes; redis-py subscribes again by itself."""
        if not transient(exc):
            super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)
        self.contact.lost(exc)
        time.sleep(1.0)

    def request_stop_execution(self, execution_id: str) -> None:
        """Stop one of the worker's executions; from any thread."""
        known = self.executions.get(execution_id)
        self._stop_job(self.active.of_execution(execution_id), known.job_id if known else "", execution_id)

    def _stop_job(self, claimed: Claimed | None, job: str, execution: str = "") -> None:
        """Leave a note, and the wish in the job, for whoever has it by now or takes it next."""
        try:
            if claimed is not None:
                self.notes.leave(Interrupt(claimed, "stopped"))
                self._source.remember_stop(claimed)
            elif self._source.pass_on_stop(job, execution):
                self.log.info("tokenloom: job %.64s is not at work here; whoever has it is told to stop it", job)
            else:
                what = f"execution {execution:.64}" if execution else f"job {job:.64}"
                self.log.warning("Not working on %s, command ignored.", what)
        except Exception as error:
            if not transient(error):
                raise
            self.contact.lost(error)

    # -- what RQ shows -------------------------------------------------------------------------------------------------

    def show(self, cycle: CycleFace) -> bool:
        """State, figures and process title, as far as they changed. True when the state did."""
        state = (
            WorkerStatus.BUSY
            if cycle.active
            else WorkerStatus.SUSPENDED
            if self.intake.suspended
            else WorkerStatus.IDLE
        )
        changed, self._state = state.value != self._state, state.value
        title = f"Running {cycle.active} jobs" if cycle.active else "Listening on " + ",".join(self.queue_names())
        moment = time.monotonic()
        if changed or moment - self._stats_at >= self.settings.heartbeat / 2 or not self._stats:
            self._stats, self._stats_at = cycle.stats(), moment
            if title != self._title:
                self._title = title
                self.procline(title)
        return changed

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        """Seconds until RQ's tools may call an execution abandoned; RQ's own adds a minute, whatever it is told."""
        return ABANDONED_AFTER

    def set_shutdown_requested_date(self) -> None:
        """When the warm shutdown was asked for, where RQ keeps it."""
        if self._shutdown_requested_date is not None:
            self.connection.hset(self.key, "shutdown_requested_date", utcformat(self._shutdown_requested_date))

    def _start_scheduler(
        self,
        burst: bool = False,
        logging_level: str | None = "INFO",
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
    ) -> None:
        """RQ's, in a fresh process instead of a fork: a fork would copy the engine and its threads' locks."""
        self.scheduler = SpawnedScheduler(
            self.queues,
            connection=self.connection,
            logging_level=logging_level if logging_level is not None else self.log.level,
            date_format=date_format,
            log_format=log_format,
            serializer=self.serializer,
        )
        self.scheduler.begin(burst)
