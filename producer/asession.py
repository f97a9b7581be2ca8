"""``Session`` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from redis.asyncio import Redis

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event
from tokenloom.schemas.log import unpack
from tokenloom.schemas.records import CloneResult, CloseResult, OpenResult, RewindResult
from tokenloom.schemas.requests import CloseRequest, Request, RewindRequest

from .astep import AsyncPending, AsyncStep
from .base import Message, Office
from .connect import reaching
from .following import BEGINNING, following
from .session import WAIT
from .staying import Stays
from .talk import astream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import RQOptions, StepOptions

T = TypeVar("T")


class AsyncSession(Stays):
    """A handle; making one asks Redis nothing. Every method means what it means on ``Session``."""

    _instead = "send its id, and ask an AsyncClient there for session(id)"

    def __init__(self, connection: Redis, office: Office, id: str, opened: OpenResult | None = None) -> None:
        self._connection = connection
        self._office = office
        self.id = id
        self.opened = opened

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id}>"

    async def step(
        self,
        text: str | None = None,
        *,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        step_id: str | None = None,
        deadline: float | datetime | timedelta | None = None,
        at_length: int | None = None,
        **options: Unpack[StepOptions],
    ) -> AsyncStep:
        """Appends, then generates; returns once the job is in the queue. See ``Session.step``."""
        request, rq = self._office.step_request(self.id, text, tokens, messages, deadline, at_length, options)
        watch = await asyncio.to_thread(self._office.place, request, rq, step_id)
        return AsyncStep(self._connection, self._office, watch)

    @overload
    async def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: Literal[True] = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> list[AsyncSession]: ...

    @overload
    async def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: Literal[False],
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> AsyncPending[list[AsyncSession]]: ...

    async def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: bool = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> list[AsyncSession] | AsyncPending[list[AsyncSession]]:
        """New sessions holding the first ``upto`` tokens of this one. See ``Session.clone``."""

        def made(result: Versioned) -> list[AsyncSession]:
            assert isinstance(result, CloneResult)
            return [AsyncSession(self._connection, self._office, target) for target in result.targets]

        return await self._do(self._office.clone_request(self.id, n, targets, upto, seeds), made, wait, timeout, rq)

    @overload
    async def rewind(
        self, to: int, *, wait: Literal[True] = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> RewindResult: ...

    @overload
    async def rewind(
        self, to: int, *, wait: Literal[False], timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> AsyncPending[RewindResult]: ...

    async def rewind(
        self, to: int, *, wait: bool = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> RewindResult | AsyncPending[RewindResult]:
        """Drops all of the log but its first ``to`` tokens."""

        def made(result: Versioned) -> RewindResult:
            assert isinstance(result, RewindResult)
            return result

        return await self._do(self._office.request(RewindRequest, session=self.id, to=to), made, wait, timeout, rq)

    @overload
    async def close(
        self, *, wait: Literal[True] = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> CloseResult: ...

    @overload
    async def close(
        self, *, wait: Literal[False], timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> AsyncPending[CloseResult]: ...

    async def close(
        self, *, wait: bool = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> CloseResult | AsyncPending[CloseResult]:
        """Ends the session. Closing twice is not an error."""

        def made(result: Versioned) -> CloseResult:
            assert isinstance(result, CloseResult)
            return result

        return await self._do(self._office.request(CloseRequest, session=self.id), made, wait, timeout, rq)

    def events(self, from_id: str = BEGINNING) -> AsyncIterator[Event]:
        """All events of the session after ``from_id``, then those to come, until it is closed."""
        office = self._office
        follow = following(office.keys, [self.id], from_id, where=office.where, patience=office.patience)
        return astream(follow.events(until_closed=self.id), self._connection)

    async def length(self) -> int | None:
        """How many tokens the log has now; None when there is no such session."""
        keys = self._office.keys
        with reaching(self._office.where):
            value: Any = await self._connection.hget(keys.session(self.id), "length")
        return None if value is None else int(value)

    async def tokens(self) -> list[int]:
        """The token ids of the log as it is now."""
        with reaching(self._office.where):
            data: Any = await self._connection.get(self._office.keys.log(self.id))
        return unpack(data or b"")

    async def _do(
        self,
        request: Request,
        made: Callable[[Versioned], T],
        wait: bool,
        timeout: float | None,
        rq: Mapping[str, Any],
    ) -> T | AsyncPending[T]:
        watch = await asyncio.to_thread(self._office.place, request, rq)
        pending = AsyncPending(self._connection, watch, made)
        return await pending.result(timeout) if wait else pending
