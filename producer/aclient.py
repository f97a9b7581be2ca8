"""The client for asyncio. Enqueuing is RQ's, which blocks, and so happens in a thread; everything else is asyncio's
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.keys import DEFAULT_NAMESPACE, DEFAULT_QUEUE, Keys
from tokenloom.schemas.records import OpenResult

from .asession import AsyncSession
from .astep import AsyncPending, AsyncStep
from .base import Office
from .connect import connect, default_url, refuse_decoding
from .following import NOW, Following, following
from .listing import SessionInfo, list_sessions
from .session import WAIT
from .staying import Stays
from .talk import arun, astream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import RQOptions


class AsyncFollower(Stays):
    """Events of many sessions over one connection: ``async for event in follower``. More may be added meanwhile."""

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

    def __aiter__(self) -> AsyncIterator[Event]:
        return astream(self._follow.events(), self._connection)


class AsyncClient(Stays):
    """Opens sessions and finds them again, for asyncio.

    ``redis`` is a URL, or None for ``RQ_REDIS_URL``, ``REDIS_URL`` or the local server. Instead, a pair of clients
    made by the service may be given: ``connection`` for reading and ``enqueue_connection``, a blocking one, for RQ.
    The other arguments are those of ``Client``. Use it in one event loop; ``async with`` closes its connections.
    """

    _instead = "make another there, by the same URL"

    def __init__(
        self,
        redis: str | None = None,
        *,
        connection: Redis | None = None,
        enqueue_connection: BlockingRedis | None = None,
        queue: str = DEFAULT_QUEUE,
        namespace: str = DEFAULT_NAMESPACE,
        tenant: str | None = None,
        patience: float = 60.0,
        max_queue: int | None = None,
    ) -> None:
        if (connection is None) != (enqueue_connection is None):
            raise TypeError("give connection and enqueue_connection together, or a URL instead of both")
        self._own = connection is None
        url = redis or default_url()
        self._enqueue_connection = connect(enqueue_connection if enqueue_connection is not None else url)
        self.connection = connection if connection is not None else Redis.from_url(url)
        refuse_decoding(self.connection)
        self._office = Office(self._enqueue_connection, queue, namespace, tenant, patience, max_queue)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._office.where}, queue {self._office.queue_name!r}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes the connections, when they are the client's own."""
        if self._own:
            await self.connection.aclose()
            self._enqueue_connection.close()

    @property
    def keys(self) -> Keys:
        """The names of everything in Redis."""
        return self._office.keys

    @overload
    async def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: Literal[True] = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> AsyncSession: ...

    @overload
    async def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: Literal[False],
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> AsyncPending[AsyncSession]: ...

    async def open(
        self,
        session: str | None = None,
        *,
        seed: int | None = None,
        defaults: Generation | Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        wait: bool = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> AsyncSession | AsyncPending[AsyncSession]:
        """Begins a session with an empty log. See ``Client.open``."""
        request = self._office.open_request(session, seed, defaults, exist_ok)

        def made(result: Versioned) -> AsyncSession:
            assert isinstance(result, OpenResult)
            return AsyncSession(self.connection, self._office, result.session, result)

        watch = await asyncio.to_thread(self._office.place, request, rq)
        pending = AsyncPending(self.connection, watch, made)
        return await pending.result(timeout) if wait else pending

    def session(self, id: str) -> AsyncSession:
        """A handle of a session that exists, or will."""
        return AsyncSession(self.connection, self._office, id)

    async def step(self, step_id: str, session: str | None = None) -> AsyncStep:
        """A step enqueued before, perhaps by another process. Raises NoSuchStep."""
        watch = await asyncio.to_thread(self._office.watch_step, step_id, session)
        return AsyncStep(self.connection, self._office, watch)

    async def cancel(self, step: AsyncStep | str, session: str | None = None) -> bool:
        """Asks for a step to end as ``cancelled``; False when it is over already. Raises NoSuchStep."""
        found = step if isinstance(step, AsyncStep) else await self.step(step, session)
        return await found.cancel()

    def follow(self, sessions: Iterable[str | AsyncSession] = (), *, from_id: str = NOW) -> AsyncFollower:
        """The events of many sessions over one connection, those to come by default."""
        names = [one.id if isinstance(one, AsyncSession) else one for one in sessions]
        office = self._office
        follow = following(office.keys, names, from_id, where=office.where, patience=office.patience)
        return AsyncFollower(self.connection, follow)

    async def sessions(self, limit: int = 100) -> list[SessionInfo]:
        """The sessions used last, the latest first."""
        return await arun(list_sessions(self._office.keys, limit, where=self._office.where), self.connection)
