"""Conversations with Redis, written once for blocking code and for asyncio.

A *talk* is a generator: it yields what it wants done and is sent the answer, so that the same lines decide what to
read, what to make of it and when to try again, whoever waits. Connection trouble is thrown into the talk at the place
where it asked. ``run`` and ``stream`` hold a talk over a ``redis.Redis``, ``arun`` and ``astream`` over a
``redis.asyncio.Redis``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from redis.exceptions import AuthenticationError

from tokenloom.schemas.events import Event

from .connect import TROUBLE, unavailable

if TYPE_CHECKING:
    import redis
    import redis.asyncio

T = TypeVar("T")

#: Entries of one stream in one answer.
READ_COUNT = 512


@dataclass(frozen=True, slots=True)
class Read:
    """XREAD of stream key -> last id seen; waits up to ``block`` seconds, not at all with 0.

    Answer: a list of (key, [(id, fields)]) with everything but the field values as text.
    """

    streams: Mapping[str, str]
    block: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Commands sent in one round trip, not as a transaction. Answer: a list of theirs."""

    commands: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this many seconds. Answer: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand an event to whoever iterates. Answer: None."""

    event: Event


Wish: TypeAlias = Read | Ask | Sleep | Emit
Talk: TypeAlias = Generator[Wish, Any, T]
Entries: TypeAlias = list[tuple[str, list[tuple[str, dict[bytes, bytes]]]]]


def run(talk: Talk[T], connection: redis.Redis) -> T:
    """Holds the talk to its end and returns what it returns. Events it emits are dropped."""
    try:
        wish = next(talk)
        while True:
            wish = _step(talk, wish, connection)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        talk.close()


def stream(talk: Talk[None], connection: redis.Redis) -> Iterator[Event]:
    """Holds the talk and yields the events it emits."""
    try:
        wish = next(talk)
        while True:
            if isinstance(wish, Emit):
                yield wish.event
                wish = talk.send(None)
            else:
                wish = _step(talk, wish, connection)
    except StopIteration:
        return
    finally:
        talk.close()


async def arun(talk: Talk[T], connection: redis.asyncio.Redis) -> T:
    """``run`` for asyncio."""
    try:
        wish = next(talk)
        while True:
            wish = await _astep(talk, wish, connection)
    except _End as end:
        value: T = end.value
        return value
    except StopIteration as end:  # from the first next()
        return end.value  # type: ignore[no-any-return]
    finally:
        talk.close()


async def astream(talk: Talk[None], connection: redis.asyncio.Redis) -> AsyncIterator[Event]:
    """``stream`` for asyncio."""
    try:
        wish = next(talk, None)
        while wish is not None:
            if isinstance(wish, Emit):
                yield wish.event
                wish = next(talk, None)
            else:
                wish = await _astep(talk, wish, connection)
    except _End:
        return
    finally:
        talk.close()


def patient(wish: Wish, *, where: str, patience: float) -> Talk[Any]:
    """The answer to ``wish``, asked again through an outage of up to ``patience`` seconds.

    Only for what may be done twice. Raises RedisUnavailable after that, or at once when the login is refused.
    """
    began: float | None = None
    delay = 0.05
    while True:
        try:
            return (yield wish)
        except TROUBLE as error:
            now = time.monotonic()
            began = now if began is None else began
            refused = isinstance(error, AuthenticationError)
            if refused or now - began >= patience:
                raise unavailable(where, error, now - began) from error
        yield Sleep(delay)
        delay = min(2.0, delay * 2)


def _step(talk: Talk[Any], wish: Wish, connection: redis.Redis) -> Wish:
    answer: Any = None
    try:
        if isinstance(wish, Read):
            answer = _entries(connection.xread(_streams(wish), count=READ_COUNT, block=_block(wish, connection)))
        elif isinstance(wish, Ask):
            pipe = connection.pipeline(transaction=False)
            for command in wish.commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            answer = pipe.execute()
        elif isinstance(wish, Sleep):
            time.sleep(wish.seconds)
    except TROUBLE as error:
        return talk.throw(error)
    return talk.send(answer)


class _End(Exception):
    """The talk ended; a coroutine cannot let StopIteration out."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


async def _astep(talk: Talk[Any], wish: Wish, connection: redis.asyncio.Redis) -> Wish:
    answer: Any = None
    trouble: BaseException | None = None
    try:
        if isinstance(wish, Read):
            block = _block(wish, connection)
            answer = _entries(await connection.xread(_streams(wish), count=READ_COUNT, block=block))
        elif isinstance(wish, Ask):
            pipe = connection.pipeline(transaction=False)
            for command in wish.commands:
                pipe.execute_command(*command)
            answer = await pipe.execute()
        elif isinstance(wish, Sleep):
            await asyncio.sleep(wish.seconds)
    except TROUBLE as error:
        trouble = error
    try:
        return talk.send(answer) if trouble is None else talk.throw(trouble)
    except StopIteration as end:
        raise _End(end.value) from None


def _streams(wish: Read) -> dict[Any, Any]:
    return dict(wish.streams)


def _block(wish: Read, connection: Any) -> int | None:
    """Milliseconds, short of the socket's own timeout."""
    if wish.block <= 0:
        return None
    timeout = connection.connection_pool.connection_kwargs.get("socket_timeout", 5)
    seconds = min(wish.block, timeout / 2) if timeout else wish.block
    return max(1, int(seconds * 1000))


def _entries(reply: Any) -> Entries:
    """One shape for the answers of both protocol versions."""
    pairs = [(key, groups[0]) for key, groups in reply.items()] if isinstance(reply, dict) else reply or []
    return [
        (key.decode(), [(id.decode(), fields) for id, fields in entries if fields is not None])
        for key, entries in pairs
    ]
