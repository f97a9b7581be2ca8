"""What the blocking and the asyncio client share: settings, requests, and how results are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel
from redis import Redis
from rq.job import Job

from tokenloom.schemas.generation import Generation
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.requests import CloneRequest, OpenRequest, Request, StepRequest
from tokenloom.schemas.validate import parse

from .connect import describe, reaching
from .ending import JobRef
from .enqueue import Enqueuer, JobSpec, Placed
from .errors import NoSuchStep
from .options import check_rq, listed, split, unix_time
from .watch import Watch

R = TypeVar("R", bound=Request)

#: What may be given as one chat message.
Message = Mapping[str, str] | BaseModel


class Office:
    """Makes requests, enqueues them and watches their jobs, for one queue and namespace. Holds no socket of its own."""

    def __init__(
        self,
        connection: Redis,
        queue: str,
        namespace: str,
        tenant: str | None,
        patience: float,
        max_queue: int | None = None,
    ) -> None:
        self.keys = Keys(namespace)
        self.where = describe(connection)
        self.tenant = tenant
        self.patience = patience
        self.queue_name = queue
        self.enqueuer = Enqueuer(connection, queue, self.keys, max_queue)

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(self, model: type[R], **fields: Any) -> R:
        """A request of these fields, those that are None left out. Raises InvalidRequest."""
        given = {"tenant": self.tenant, **fields}
        return parse(model, {name: value for name, value in given.items() if value is not None})

    def open_request(
        self, session: str | None, seed: int | None, defaults: Generation | Mapping[str, Any] | None, exist_ok: bool
    ) -> OpenRequest:
        """A request to open a session, with an id of its own unless given."""
        name = session if session is not None else f"s-{uuid4().hex}"
        return self.request(OpenRequest, session=name, seed=seed, defaults=_settings(defaults), exist_ok=exist_ok)

    def step_request(
        self,
        session: str,
        text: str | None,
        tokens: Sequence[int] | None,
        messages: Sequence[Message] | None,
        deadline: float | datetime | timedelta | None,
        at_length: int | None,
        options: Mapping[str, Any],
    ) -> tuple[StepRequest, dict[str, Any]]:
        """A step's request, and the options meant for RQ."""
        settings, rq = split(options)
        request = self.request(
            StepRequest,
            session=session,
            text=text,
            tokens=listed(tokens),
            messages=[_plain(message) for message in messages] if isinstance(messages, (list, tuple)) else messages,
            generation=settings,
            deadline=unix_time(deadline),
            at_length=at_length,
        )
        return request, rq

    def clone_request(
        self, session: str, n: int, targets: Sequence[str] | None, upto: int | None, seeds: Sequence[int] | None
    ) -> CloneRequest:
        """A request for ``n`` clones with ids of their own, or for the given ones."""
        names = listed(targets) if targets is not None else [f"{session[:100]}~{uuid4().hex[:16]}" for _ in range(n)]
        return self.request(CloneRequest, session=session, targets=names, upto=upto, seeds=listed(seeds))

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def place(self, request: Request, options: Mapping[str, Any], job_id: str | None = None) -> Watch:
        """Enqueues the request and returns the watch over its job. Raises InvalidRequest and RedisUnavailable."""
        rq = check_rq(options)
        with reaching(self.where):
            placed = self.enqueuer.place(request, job_id, rq)
        return self.watch(request, placed)

    def spec(self, request: Request, options: Mapping[str, Any], job_id: str | None) -> JobSpec:
        """The request as RQ's own methods take it."""
        return self.enqueuer.spec(request, job_id, check_rq(options))

    def watch(self, request: Request, placed: Placed) -> Watch:
        """The watch over a job just placed."""
        operation = request.function.rsplit(".", 1)[1]
        return self._watch(JobRef(operation, request.session, placed.id), placed.after, placed.attached)

    def watch_step(self, step: str, session: str | None) -> Watch:
        """The watch over a step enqueued elsewhere. Raises NoSuchStep when nobody knows its session."""
        with reaching(self.where):
            found = self.enqueuer.find(step)
        if found is None and session is None:
            raise NoSuchStep(
                f"RQ has no job {step}: its result expired, or it was deleted; name the session to look there"
            )
        known, after = found if found is not None else ("", "0-0")
        return self._watch(JobRef("step", session or known, step), after, True)

    def job(self, id: str) -> Job:
        """RQ's job. Raises NoSuchStep when RQ does not have it, and RedisUnavailable."""
        with reaching(self.where):
            job = self.enqueuer.fetch(id)
        if job is None:
            raise NoSuchStep(f"RQ has no job {id}: its result expired, or it was deleted")
        return job

    def _watch(self, job: JobRef, after: str, attached: bool) -> Watch:
        return Watch(
            keys=self.keys,
            queue=self.queue_name,
            where=self.where,
            job=job,
            after=after,
            attached=attached,
            patience=self.patience,
        )


def _settings(defaults: Generation | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if defaults is None:
        return None
    return defaults.model_dump(exclude_none=True) if isinstance(defaults, Generation) else dict(defaults)


def _plain(message: Message) -> Any:
    return message.model_dump() if isinstance(message, BaseModel) else message
