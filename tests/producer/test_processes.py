"""Clients and handles where there are several processes: inherited by a fork, and never sent to another process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import pytest
from redis import Redis

from tokenloom.producer import AsyncClient, Client

HANDLES: dict[str, tuple[Callable[[Client], object], str]] = {
    "Client": (lambda client: client, "make another there, by the same URL"),
    "Session": (lambda client: client.session("a"), r"send its id, and ask a Client there for session\(id\)"),
    "Step": (lambda client: client.session("a").step("hello"), r"send its id, and ask a Client there for step\(id\)"),
    "Pending": (lambda client: client.session("a").close(wait=False), "make a Client there, by the same URL, and ask"),
    "Follower": (lambda client: client.follow(["a"]), "make a Client there, by the same URL, and ask it for the same"),
}


@pytest.mark.parametrize("name", HANDLES)
def test_a_handle_says_what_to_send_instead(name: str, redis_url: str) -> None:
    make, instead = HANDLES[name]
    with Client(redis_url) as client, pytest.raises(TypeError, match=rf"^{name} holds connections .*: {instead}"):
        pickle.dumps(make(client))


def test_an_async_handle_says_what_to_send_instead(redis_url: str) -> None:
    async def check() -> None:
        async with AsyncClient(redis_url) as client:
            step = await client.session("a").step("hello")
            with pytest.raises(TypeError, match=r"^AsyncClient holds connections .*: make another there"):
                pickle.dumps(client)
            with pytest.raises(TypeError, match=r"^AsyncSession .*, and ask an AsyncClient there for session\(id\)"):
                pickle.dumps(client.session("a"))
            with pytest.raises(TypeError, match=r"^AsyncStep .*, and ask an AsyncClient there for step\(id\)"):
                pickle.dumps(step)

    asyncio.run(check())


def enqueue(client: Client, text: str, answer: Connection) -> None:
    answer.send(client.session("a").step(text).id)


def test_a_forked_process_goes_on_with_what_it_inherits(redis_url: str, redis: Redis, worker: Any) -> None:
    """The client has a connection open when the process forks; both then use it, and each gets its own answers."""
    with Client(redis_url) as client:
        first = client.session("a").step("parent")
        ours, theirs = get_context("fork").Pipe()
        child = get_context("fork").Process(target=enqueue, args=(client, "child", theirs))
        child.start()
        second = client.session("a").step("parent again")
        third = ours.recv()
        child.join(20)
        assert child.exitcode == 0
        assert {id.decode() for id in redis.lrange("rq:queue:steps", 0, -1)} == {first.id, second.id, third}
        worker.step("a", third, ["Hi"])
        assert client.step(third, "a").text == "Hi"
