"""The blocking client: what a service imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from redis import Redis
from rq import Queue

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.keys import DEFAULT_NAMESPACE, DEFAULT_QUEUE, Keys
from tokenloom.schemas.records import OpenResult

from .base import Office
from .connect import connect
from .following import NOW, Following, following
from .listing import SessionInfo, list_sessions
from .session import WAIT, Session
from .staying import Stays
from .step import Pending, Step
from .talk import run, stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import RQOptions


class Follower(Stays):
    """Events of many sessions over one connection: iterate over it. Any thread may add more."""

    def __init__(self, connection: Redis, follow: Following) -> None:
        self._connection = connection
        self._follow = follow
        self.add = follow.add
        self.discard = follow.discard
        self.close = follow.close

    @property
    def positions(self) -> Mapping[str, str]:
        """Session -> id of the last event read."""
        return self._follow.positions

    def __iter__(self) -> Iterator[Event]:
        return stream(self._follow.events(), self._connection)


class Client(Stays):
    """Opens sessions and finds them again.

    ``redis`` is a URL, a ``redis.Redis`` (without ``decode_responses``), or None for ``RQ_REDIS_URL``, ``REDIS_URL``
    or the local server. ``tenant`` is whose share of the worker the jobs count against. ``patience`` is how many
    seconds readers bear with a Redis that is away before they raise RedisUnavailable. With ``max_queue`` jobs waiting,
    new ones raise Overloaded (but closing never does). Thread-safe; making one asks Redis nothing.
    """

    _instead = "make another there, by the same URL"

    def __init__(
        self,
        redis: Redis | str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        namespace: str = DEFAULT_NAMESPACE,
        tenant: str | None = None,
        patience: float = 60.0,
        max_queue: int | None = None,
    ) -> None:
        self.connection = connect(redis)
        self._own = not isinstance(redis, Redis)
        self._office = Office(self.connection, queue, namespace, tenant, patience, max_queue)

    def __repr__(self) -> str:
        return f"<Client of {self._office.where}, queue {self._office.queue_name!r}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Closes the connections, when they are the client's own. It may be used again afterwards."""
        if self._own:
            self.connection.close()

    @property
    def queue(self) -> Queue:
        """RQ's queue, with our serializer."""
        return self._office.enqueuer.queue

    @property
    def keys(self) -> Keys:
        """The names of everything in Redis."""
        return self._office.keys

    @overload
    def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: Literal[True] = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> Session: ...

    @overload
    def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: Literal[False],
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> Pending[Session]: ...

    def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: bool = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> Session | Pending[Session]:
        """Begins a session with an empty log, under an id of its own unless ``session`` names one.

        ``defaults`` are sampling settings for its steps. With ``wait=False`` it returns at once, and steps may be
        enqueued through ``client.session(id)`` right away: jobs of a session run in order.

        Raises SessionExists (unless ``exist_ok``), InvalidRequest, TimeoutError, RedisUnavailable.
        """
        request = self._office.open_request(session, seed, defaults, exist_ok)

        def made(result: Versioned) -> Session:
            assert isinstance(result, OpenResult)
            return Session(self.connection, self._office, result.session, result)

        pending = Pending(self.connection, self._office, self._office.place(request, rq), made)
        return pending.result(timeout) if wait else pending

    def session(self, id: str) -> Session:
        """A handle of a session that exists, or will."""
        return Session(self.connection, self._office, id)

    def step(self, step_id: str, session: str | None = None) -> Step:
        """A step enqueued before, perhaps by another process.

        ``session`` lets it be found when RQ has forgotten the job but the session has not. Raises NoSuchStep.
        """
        return Step(self.connection, self._office, self._office.watch_step(step_id, session))

    def cancel(self, step: Step | str, session: str | None = None) -> bool:
        """Asks for a step to end as ``cancelled``; False when it is over already. Raises NoSuchStep."""
        return (step if isinstance(step, Step) else self.step(step, session)).cancel()

    def follow(self, sessions: Iterable[str | Session] = (), *, from_id: str = NOW) -> Follower:
        """The events of many sessions over one connection, those to come by default."""
        names = [one.id if isinstance(one, Session) else one for one in sessions]
        office = self._office
        return Follower(
            self.connection,
            following(office.keys, names, from_id, where=office.where, patience=office.patience),
        )

    def sessions(self, limit: int = 100) -> list[SessionInfo]:
        """The sessions used last, the latest first."""
        office = self._office
        return run(list_sessions(office.keys, limit, where=office.where), self.connection)
