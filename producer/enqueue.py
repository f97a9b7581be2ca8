"""Jobs into RQ's queue: one per id, with the place in the session's stream where its events can start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from redis import Redis, WatchError
from rq import Queue
from rq.exceptions import DuplicateJobError, NoSuchJobError
from rq.job import Dependency, Job

from tokenloom.schemas.codec import CodecError
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.ids import STEP_ID_PATTERN
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.requests import CloseRequest, Request
from tokenloom.schemas.serializer import MsgpackSerializer

#: RQ's own limit of 180 s would end long generations; ``job_timeout`` overrides it, -1 for none.
JOB_TIMEOUT = 3600

#: Seconds RQ keeps a result. The session's own record of the step stays for longer, so this only bounds RQ's memory.
RESULT_TTL = 3600

#: Seconds RQ keeps a failed job for inspection and `rq requeue`.
FAILURE_TTL = 7 * 24 * 3600

#: Names in a job's meta that are the contract's own.
META = ("sessions", "namespace", "tenant", "after")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to hand to RQ's own methods: ``queue.enqueue_in(delay, spec.func, **spec.options)``."""

    func: str
    options: dict[str, Any]

    @property
    def id(self) -> str:
        """The job's id, which is the step's."""
        return str(self.options["job_id"])


@dataclass(frozen=True, slots=True)
class Placed:
    """A job in RQ. ``after`` is the stream id its events come after; ``attached`` that the job was there before."""

    id: str
    after: str
    attached: bool


class Enqueuer:
    """Puts requests into one queue. Thread-safe."""

    def __init__(self, connection: Redis, queue: str, keys: Keys, max_queue: int | None = None) -> None:
        self.connection = connection
        self.keys = keys
        self.max_queue = max_queue
        self.queue = Queue(queue, connection=connection, serializer=MsgpackSerializer, default_timeout=JOB_TIMEOUT)

    def spec(
        self, request: Request, job_id: str | None, options: Mapping[str, Any], after: str | None = None
    ) -> JobSpec:
        """The job of a request as RQ's ``enqueue`` takes it. Raises InvalidRequest for reserved names in ``meta``."""
        if job_id is not None and not re.fullmatch(STEP_ID_PATTERN, job_id):
            allowed = "1-128 characters: letters, digits, underscore, dash"
            raise TokenloomError.of(
                "invalid",
                f"step_id: {job_id!r} is no id for a job; {allowed}",
                field="step_id",
                value=job_id,
                limit=allowed,
            )
        given = dict(options)
        own = {
            "sessions": list(request.sessions),
            "namespace": self.keys.namespace,
            "tenant": request.tenant,
            "after": after,
        }
        meta = given.pop("meta", {})
        for name in META:
            if name in meta:
                raise TokenloomError.of("invalid", f"meta: the name {name!r} is reserved", field=f"meta.{name}")
        if "depends_on" in given:
            given["depends_on"] = _dependencies(given["depends_on"])
        return JobSpec(
            request.function,
            {
                "description": f"{request.function.rsplit('.', 1)[1]} {request.session}",
                "job_timeout": JOB_TIMEOUT,
                "result_ttl": RESULT_TTL,
                "failure_ttl": FAILURE_TTL,
                **given,
                "kwargs": request.model_dump(exclude_none=True),
                "job_id": job_id or uuid4().hex,
                "meta": {**meta, **{name: value for name, value in own.items() if value is not None}},
            },
        )

    def place(self, request: Request, job_id: str | None, options: Mapping[str, Any]) -> Placed:
        """Enqueues the request, or finds the job that has this id already.

        Raises InvalidRequest when that job is another's, or when the request is too large, and Overloaded when the
        queue is longer than allowed.
        """
        self._check_length(request, job_id)
        given = dict(options)
        later, at = given.pop("enqueue_in", None), given.pop("enqueue_at", None)
        if later is not None and at is not None:
            raise TypeError("give enqueue_in or enqueue_at, not both")
        if later is not None and not isinstance(later, timedelta):
            later = timedelta(seconds=later)
        after = self.last_id(request.session)
        spec = self.spec(request, job_id, given, after)
        try:
            while True:
                try:
                    if later is not None:
                        self.queue.enqueue_in(later, spec.func, **spec.options, unique=True)
                    elif at is not None:
                        self.queue.enqueue_at(at, spec.func, **spec.options, unique=True)
                    elif "depends_on" in spec.options:
                        self._enqueue_dependent(spec)
                    else:
                        self.queue.enqueue(spec.func, **spec.options, unique=True)
                    return Placed(spec.id, after, attached=False)
                except DuplicateJobError:
                    found = self._attach(spec)
                    if found is not None:
                        return found
        except CodecError as error:
            raise TokenloomError.of("invalid", f"{type(request).__name__}: {error}") from error

    def find(self, job_id: str) -> tuple[str, str] | None:
        """(session, stream id its events come after) of a job that RQ still has, or None."""
        job = self.fetch(job_id)
        if job is None:
            return None
        sessions = job.meta.get("sessions") or [""]
        return str(sessions[0]), str(job.meta.get("after", "0-0"))

    def fetch(self, job_id: str) -> Job | None:
        """RQ's job of this id, or None."""
        try:
            return Job.fetch(job_id, connection=self.connection, serializer=MsgpackSerializer)
        except NoSuchJobError:
            return None

    def last_id(self, session: str) -> str:
        """The id of the newest entry of the session's stream; ``0-0`` when there is none."""
        newest: Any = self.connection.xrevrange(self.keys.events(session), count=1)
        return newest[0][0].decode() if newest else "0-0"

    def _check_length(self, request: Request, job_id: str | None) -> None:
        """Refuse a new job while too many wait; closing, which frees something, and a known id are never refused.

        Producers that look at the same moment may pass together, by one job each.
        """
        if self.max_queue is None or isinstance(request, CloseRequest):
            return
        waiting = self.queue.count
        if waiting < self.max_queue or (job_id is not None and Job.exists(job_id, connection=self.connection)):
            return
        raise TokenloomError.of(
            "overloaded",
            f"queue {self.queue.name!r} has {waiting} jobs waiting, and this client allows {self.max_queue}: try later",
            field="max_queue",
            value=waiting,
            limit=f"fewer than {self.max_queue}",
        )

    def _enqueue_dependent(self, spec: JobSpec) -> None:
        """``unique=True`` for a job with dependencies, which RQ does not offer: watch its key, then write."""
        key = Job.key_for(spec.id)
        with self.connection.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(key)  # type: ignore[no-untyped-call]
                    if pipe.exists(key):
                        raise DuplicateJobError(spec.id)
                    self.queue.enqueue(spec.func, **spec.options, pipeline=pipe)
                    pipe.execute()
                    return
                except WatchError:
                    pipe.reset()

    def _attach(self, spec: JobSpec) -> Placed | None:
        """The job that has the spec's id; None when it went away meanwhile."""
        job = self.fetch(spec.id)
        if job is None:
            return None
        session = spec.options["kwargs"]["session"]
        if job.func_name != spec.func or job.kwargs.get("session") != session:
            raise TokenloomError.of(
                "invalid",
                f"the id {spec.id} is taken by another job ({job.description})",
                field="step_id",
                value=spec.id,
                limit="an id of its own for each job",
            )
        return Placed(spec.id, str(job.meta.get("after", "0-0")), attached=True)


def _dependencies(given: Any) -> Any:
    """``depends_on`` as RQ takes it, with ids for our own handles."""
    if isinstance(given, (list, tuple)):
        return [_dependencies(one) for one in given]
    if isinstance(given, (str, Job, Dependency)):
        return given
    return getattr(given, "id", given)
