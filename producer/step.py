"""A step in the queue, at work or done; and any other job that was not waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from redis import Redis
from rq.job import Job

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event, FinishedEvent, TokensEvent
from tokenloom.schemas.records import StepResult

from .cancelling import request_cancel
from .errors import StepFailed
from .following import check_id
from .staying import Stays
from .talk import run, stream
from .watch import Watch

if TYPE_CHECKING:
    from .base import Office

T = TypeVar("T")


class Step(Stays):
    """One step. Iterating over it yields its events as they arrive, the last one ``finished``.

    A step may be iterated any number of times, from several places, and from another process (``client.step(id)``).
    """

    _instead = "send its id, and ask a Client there for step(id)"

    def __init__(self, connection: Redis, office: Office, watch: Watch) -> None:
        self._connection = connection
        self._office = office
        self._watch = watch

    def __repr__(self) -> str:
        return f"<Step {self.id} of {self.session}>"

    @property
    def id(self) -> str:
        """The step's id, which is its RQ job's."""
        return self._watch.job.id

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._watch.job.session

    @property
    def job(self) -> Job:
        """The RQ job. Raises NoSuchStep when RQ does not have it any more."""
        return self._office.job(self.id)

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self, from_id: str | None = None, *, timeout: float | None = None) -> Iterator[Event]:
        """The step's events after the one with the id ``from_id`` (``event.id``), from its first one by default.

        An interrupted connection is taken up again where it was. Raises TimeoutError when ``timeout`` seconds bring no
        event, EventsLost when some were trimmed before they were read, and RedisUnavailable.
        """
        return stream(self._watch.events(None if from_id is None else check_id(from_id), timeout), self._connection)

    def stream_text(self, *, timeout: float | None = None) -> Iterator[str]:
        """The generated text, piece by piece as it becomes certain. Raises StepFailed when the step fails."""
        for event in self.events(timeout=timeout):
            if isinstance(event, (TokensEvent, FinishedEvent)) and event.text:
                yield event.text
            if isinstance(event, FinishedEvent) and event.error is not None:
                raise StepFailed.of_body(event.error)

    @property
    def text(self) -> str:
        """All of the generated text, once the step is over; waits for that."""
        return self.result().text

    def result(self, timeout: float | None = None) -> StepResult:
        """The step's result; waits for it, for ``timeout`` seconds at most.

        Steps that ended as ``stop``, ``length``, ``cancelled`` or ``timeout`` return. Raises StepFailed, also as the
        class of its code such as ContextFull; TimeoutError, which says whether a worker is alive; NoSuchStep when both
        RQ and the session have forgotten it; RedisUnavailable.
        """
        result = run(self._watch.result(timeout), self._connection)
        assert isinstance(result, StepResult)
        return result

    def cancel(self) -> bool:
        """Asks for the step to end as ``cancelled``; False when it is over already. Returns at once."""
        watch = self._watch
        talk = request_cancel(watch.keys, self.session, self.id, where=watch.where, patience=watch.patience)
        return run(talk, self._connection)


class Pending(Stays, Generic[T]):
    """A job that was enqueued without waiting for it."""

    def __init__(self, connection: Redis, office: Office, watch: Watch, make: Callable[[Versioned], T]) -> None:
        self._connection = connection
        self._office = office
        self._watch = watch
        self._make = make

    def __repr__(self) -> str:
        return f"<Pending {self._watch.job.operation} {self.id} of {self._watch.job.session}>"

    @property
    def id(self) -> str:
        """The RQ job's id."""
        return self._watch.job.id

    @property
    def job(self) -> Job:
        """The RQ job. Raises NoSuchStep when RQ does not have it any more."""
        return self._office.job(self.id)

    def result(self, timeout: float | None = None) -> T:
        """What the call would have returned. Raises TokenloomError, TimeoutError and RedisUnavailable as it does."""
        return self._make(run(self._watch.result(timeout), self._connection))
