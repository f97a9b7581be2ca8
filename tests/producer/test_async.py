"""The asyncio client: the same talk, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import redis.asyncio as redis_asyncio
from redis import Redis

from tokenloom.producer import (
    AsyncClient,
    AsyncPending,
    ContextFull,
    InvalidRequest,
    NoSuchStep,
    RedisUnavailable,
    SessionExists,
)
from tokenloom.schemas import (
    CloneResult,
    CloseResult,
    ErrorBody,
    FinishedEvent,
    OpenResult,
    RewindResult,
    RewoundEvent,
    Usage,
)

T = TypeVar("T")
Start = Callable[..., None]


def drive(url: str, body: Callable[[AsyncClient], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        async with AsyncClient(url, **options) as client:
            return await body(client)

    return asyncio.run(main())


def test_a_step_streams_and_returns(redis_url: str, worker: Any, background: Start) -> None:
    background(lambda: worker.step("a", worker.claim().id, ["A", "B", "C"], pause=0.05))

    async def body(client: AsyncClient) -> None:
        step = await client.session("a").step("x", max_tokens=5, step_id="one")
        events = [event async for event in step]
        assert [event.type for event in events] == ["appended", "tokens", "tokens", "tokens", "finished"]
        assert [event async for event in step.events(events[1].id)] == events[2:]
        assert "".join([piece async for piece in step.stream_text()]) == "ABC" == await step.text()
        assert (await step.result(timeout=5)).tokens == [100, 101, 102]
        assert (await step.job()).kwargs["generation"] == {"max_tokens": 5}
        again = await client.session("a").step("x", step_id="one")
        assert (await again.result(timeout=5)).text == "ABC"
        assert (await (await client.step("one")).result(timeout=5)).text == "ABC"
        assert await client.session("a").length() is None
        assert await client.session("a").tokens() == []

    drive(redis_url, body)


def test_the_loop_runs_on_while_a_step_is_awaited(redis_url: str, worker: Any) -> None:
    async def body(client: AsyncClient) -> int:
        step = await client.session("a").step("x")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with pytest.raises(TimeoutError, match="no tokenloom worker is alive"):
            await step.result(timeout=0.5)
        ticker.cancel()
        return ticks

    assert drive(redis_url, body) > 20


def test_many_steps_are_awaited_together(redis_url: str, worker: Any, background: Start) -> None:
    def work() -> None:
        for _ in range(20):
            job = worker.claim()
            worker.step(job.kwargs["session"], job.id, [job.kwargs["text"]])

    background(work)

    async def one(client: AsyncClient, n: int) -> str:
        step = await client.session(f"s{n}").step(f"text {n}")
        return (await step.result(timeout=10)).text

    async def body(client: AsyncClient) -> list[str]:
        return await asyncio.gather(*(one(client, n) for n in range(20)))

    assert drive(redis_url, body) == [f"text {n}" for n in range(20)]


def test_sessions_are_opened_cloned_rewound_and_closed(redis_url: str, worker: Any, background: Start) -> None:
    def work() -> None:
        worker.succeed(worker.claim(), OpenResult(session="a", seed=1, length=0, created=True))
        worker.succeed(worker.claim(), CloneResult(session="a", targets=["b"], seeds=[1], length=0))
        worker.succeed(worker.claim(), RewindResult(session="a", length=0))
        worker.succeed(worker.claim(), CloseResult(session="a", closed=True))
        worker.fail(worker.claim(), "[session_exists] a is open")

    background(work)

    async def body(client: AsyncClient) -> None:
        session = await client.open("a", timeout=5)
        assert session.opened is not None
        assert [copy.id for copy in await session.clone(targets=["b"], timeout=5)] == ["b"]
        pending = await session.rewind(0, wait=False)
        assert isinstance(pending, AsyncPending)
        assert (await pending.result(timeout=5)).length == 0
        assert (await session.close(timeout=5)).closed
        with pytest.raises(SessionExists):
            await client.open("a", timeout=5)
        assert await client.sessions() == []

    drive(redis_url, body)


def test_errors_are_the_same_classes(redis_url: str, worker: Any, redis: Redis) -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest):
            await client.session("a b").step("x")
        with pytest.raises(NoSuchStep):
            await client.step("gone")
        step = await client.session("a").step("x")
        assert await step.cancel() is True
        assert await client.cancel(step.id) is True
        assert redis.hexists(worker.keys.cancels("a"), step.id)
        error = ErrorBody(code="context_full", message="no room")
        usage = Usage(appended=0, generated=0)
        worker.emit("a", step.id, FinishedEvent, reason="error", length=0, usage=usage, error=error)
        worker.fail(step.id, "[context_full] no room")
        with pytest.raises(ContextFull):
            await step.result(timeout=5)
        with pytest.raises(ContextFull):
            async for _ in step.stream_text():
                pass

    drive(redis_url, body)


def test_a_follower_adds_sessions_on_the_way(redis_url: str, worker: Any) -> None:
    async def body(client: AsyncClient) -> list[tuple[str, int]]:
        follower = client.follow(["a"], from_id="0")
        worker.emit("a", "j", RewoundEvent, length=1)
        got = []
        async for event in follower:
            got.append((event.session, event.length))
            if len(got) == 1:
                follower.add("b", "0")
                worker.emit("b", "j", RewoundEvent, length=2)
            else:
                follower.close()
        return got

    assert drive(redis_url, body) == [("a", 1), ("b", 2)]


def test_a_reader_that_is_cancelled_leaves_the_client_usable(redis_url: str, worker: Any) -> None:
    async def body(client: AsyncClient) -> str:
        step = await client.session("a").step("x")
        reading = asyncio.create_task(step.result())
        await asyncio.sleep(0.2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        worker.step("a", step.id, ["A"])
        return (await step.result(timeout=5)).text

    assert drive(redis_url, body) == "A"


def test_a_killed_server_costs_no_event(
    valkey_server: Callable[..., Any], acting_worker: Any, background: Start
) -> None:
    server = valkey_server(appendfsync="always")
    worker = acting_worker(server.client())

    def work() -> None:
        id = worker.claim().id
        worker.emit("a", id, RewoundEvent, length=9)
        server.kill()
        server.start()
        worker.step("a", id, ["A", "B"])

    background(work)

    async def body(client: AsyncClient) -> str:
        step = await client.session("a").step("x")
        return "".join([piece async for piece in step.stream_text()])

    assert drive(server.url, body) == "AB"


def test_no_redis_is_said_as_clearly() -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(RedisUnavailable, match=r"no Redis at redis://127\.0\.0\.1:1/0"):
            await client.open()
        with pytest.raises(RedisUnavailable, match=r"no Redis at redis://127\.0\.0\.1:1/0"):
            await client.sessions()

    drive("redis://127.0.0.1:1/0", body)


def test_connections_of_the_service_may_be_used(redis_url: str, redis: Redis, worker: Any) -> None:
    async def main() -> None:
        own = redis_asyncio.Redis.from_url(redis_url)
        client = AsyncClient(connection=own, enqueue_connection=redis)
        step = await client.session("a").step("x")
        worker.step("a", step.id, ["A"])
        assert (await step.result(timeout=5)).text == "A"
        await client.disconnect()
        assert await own.ping()
        await own.aclose()

    asyncio.run(main())
    with pytest.raises(TypeError, match="together"):
        AsyncClient(enqueue_connection=redis)
