"""``Step`` and ``Pending`` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from redis.asyncio import Redis
from rq.job import Job

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event, FinishedEvent, TokensEvent
from tokenloom.schemas.records import StepResult

from .base import Office
from .cancelling import request_cancel
from .errors import StepFailed
from .following import check_id
from .staying import Stays
from .talk import arun, astream
from .watch import Watch

T = TypeVar("T")


class AsyncStep(Stays):
    """One step. ``async for event in step`` yields its events as they arrive, the last one ``finished``.

    See ``Step``; what waits there is awaited here.
    """

    _instead = "send its id, and ask an AsyncClient there for step(id)"

    def __init__(self, connection: Redis, office: Office, watch: Watch) -> None:
        self._connection = connection
        self._office = office
        self._watch = watch

    def __repr__(self) -> str:
        return f"<AsyncStep {self.id} of {self.session}>"

    @property
    def id(self) -> str:
        """The step's id, which is its RQ job's."""
        return self._watch.job.id

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._watch.job.session

    async def job(self) -> Job:
        """The RQ job. Raises NoSuchStep when RQ does not have it any more."""
        return await asyncio.to_thread(self._office.job, self.id)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.events()

    def events(self, from_id: str | None = None, *, timeout: float | None = None) -> AsyncIterator[Event]:
        """The step's events after ``from_id``; see ``Step.events``."""
        return astream(self._watch.events(None if from_id is None else check_id(from_id), timeout), self._connection)

    async def stream_text(self, *, timeout: float | None = None) -> AsyncIterator[str]:
        """The generated text, piece by piece. Raises StepFailed when the step fails."""
        async for event in self.events(timeout=timeout):
            if isinstance(event, (TokensEvent, FinishedEvent)) and event.text:
                yield event.text
            if isinstance(event, FinishedEvent) and event.error is not None:
                raise StepFailed.of_body(event.error)

    async def text(self) -> str:
        """All of the generated text, once the step is over."""
        return (await self.result()).text

    async def result(self, timeout: float | None = None) -> StepResult:
        """The step's result; see ``Step.result``."""
        result = await arun(self._watch.result(timeout), self._connection)
        assert isinstance(result, StepResult)
        return result

    async def cancel(self) -> bool:
        """Asks for the step to end as ``cancelled``; False when it is over already."""
        watch = self._watch
        talk = request_cancel(watch.keys, self.session, self.id, where=watch.where, patience=watch.patience)
        return await arun(talk, self._connection)


class AsyncPending(Stays, Generic[T]):
    """A job that was enqueued without waiting for it."""

    def __init__(self, connection: Redis, watch: Watch, make: Callable[[Versioned], T]) -> None:
        self._connection = connection
        self._watch = watch
        self._make = make

    @property
    def id(self) -> str:
        """The RQ job's id."""
        return self._watch.job.id

    async def result(self, timeout: float | None = None) -> T:
        """What the call would have returned."""
        return self._make(await arun(self._watch.result(timeout), self._connection))
