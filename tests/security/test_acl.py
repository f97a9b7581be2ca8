"""The users that docs/security.md describes can do what they must, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.exceptions
from redis import Redis
from rq.command import send_shutdown_command

from security.acl_lines import PASSWORD, acl_lines
from tokenloom.producer import AsyncClient, Client, InvalidRequest, SessionExists
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeServer = Callable[..., ValkeyServer]
MakeWorker = Callable[..., WorkerProcess]

NoPermission = redis.exceptions.NoPermissionError


@pytest.fixture
def server(valkey_server: MakeServer) -> ValkeyServer:
    """A server with the users, on which nobody may do anything without a login."""
    server = valkey_server()
    with server.client() as admin:
        for arguments in acl_lines().values():
            admin.execute_command("ACL", "SETUSER", *arguments)
        admin.execute_command("ACL", "SETUSER", "admin", "on", "nopass", "~*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all", "+ping")
    return server


def url(server: ValkeyServer, user: str) -> str:
    return server.tcp_url.replace("redis://", f"redis://{user}:{PASSWORD}@")


@pytest.fixture
def admin(server: ValkeyServer) -> Iterator[Redis]:
    with Redis.from_url(server.tcp_url.replace("redis://", "redis://admin:x@")) as client:
        yield client


@pytest.fixture
def worker(server: ValkeyServer, make_worker: MakeWorker) -> WorkerProcess:
    return make_worker(
        name="w",
        redis_url=url(server, "worker"),
        options=("--with-scheduler",),
        engine="fake",
        heartbeat=0.2,
        lease=1.0,
    )


def refusals(admin: Redis) -> list[tuple[str, str]]:
    """User and what was refused, of everything the server has refused."""
    entries: Any = admin.acl_log(128)
    return [(entry["username"], f"{entry['reason']} {entry['object']}") for entry in entries]


def test_the_document_has_all_users() -> None:
    assert set(acl_lines()) == {"producer", "worker", "reader"}


def test_a_client_can_do_everything_and_a_worker_serves_it(
    server: ValkeyServer, worker: WorkerProcess, admin: Redis
) -> None:
    with Client(url(server, "producer"), tenant="t") as client:
        session = client.open("s", seed=1)
        step = session.step("hello", max_tokens=8, ignore_eos=True, step_id="first")
        assert len([event for event in step.events(timeout=20) if event.type == "tokens"]) == 8
        assert step.result(20).usage.generated == 8
        with pytest.raises(InvalidRequest):
            session.step(tokens=[100_000], max_tokens=1).result(20)
        with pytest.raises(SessionExists):
            client.open("s")
        clones = session.clone(2)
        session.rewind(1)
        running = clones[0].step("go", max_tokens=3000, ignore_eos=True)
        next(iter(running.events(timeout=20)))
        assert running.cancel()
        assert running.result(20).reason == "cancelled"
        late = session.step("later", max_tokens=1, enqueue_in=0.1)
        after = session.step("x", max_tokens=1, depends_on=running, at_front=True)
        assert after.result(20).usage.generated == 1
        assert late.result(20).usage.generated == 1
        assert client.step("first").result(20).step == "first"
        assert {info.id for info in client.sessions()} >= {"s", clones[0].id}
        follower = client.follow(["s"], from_id="0")
        assert next(iter(follower)).session == "s"
        follower.close()
        assert step.job.get_status() == "finished"
        session.close()
        for clone in clones:
            clone.close()
    assert worker.terminate() == 0
    assert refusals(admin) == []


async def _asyncio(server: ValkeyServer) -> None:
    async with AsyncClient(url(server, "producer")) as client:
        session = await client.open("a")
        step = await session.step("hi", max_tokens=3, ignore_eos=True)
        assert (await step.result()).usage.generated == 3
        await session.close()


def test_so_can_an_asyncio_client(server: ValkeyServer, worker: WorkerProcess, admin: Redis) -> None:
    import asyncio

    asyncio.run(_asyncio(server))
    assert refusals(admin) == []


FORBIDDEN: dict[str, list[tuple[Any, ...]]] = {
    "producer": [
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("SHUTDOWN",),
        ("ACL", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("MONITOR",),
        ("SCRIPT", "FLUSH"),
        ("FUNCTION", "FLUSH"),
        ("REPLICAOF", "127.0.0.1", "1"),
        ("SET", "other", "x"),
        ("HGET", "other", "x"),
        ("HSET", "other:{s}:session", "x", "y"),
        ("HSET", "tokenloom:{s}:session", "length", "x"),
        ("RPUSH", "rq:queue:other", "x"),
        ("HSET", "tokenloom:worker:w", "incarnation", "x"),
        ("DEL", "tokenloom:worker:w"),
        ("DEL", "tokenloom:{s}:log"),
        ("HSET", "tokenloom:{s}:steps", "x", "y"),
        ("XADD", "tokenloom:{s}:events", "*", "e", "x"),
        ("DEL", "tokenloom:{s}:events"),
        ("SADD", "tokenloom:workers", "x"),
        ("ZADD", "tokenloom:sessions", "1", "x"),
        ("DEL", "rq:results:x"),
        ("SADD", "rq:workers", "x"),
        ("PUBLISH", "rq:pubsub:w", "x"),
        ("PUBLISH", "tokenloom:{s}:tokens", "x"),
        ("EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "tokenloom:{s}:log"),
        ("EVAL", "return redis.call('DEL', 'tokenloom:{s}:log')", "0"),
        ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ],
    "worker": [
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("ACL", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("MONITOR",),
        ("SET", "other", "x"),
        ("GET", "other"),
        ("PUBLISH", "other", "x"),
        ("EVAL", "return redis.call('SET', 'other', 'x')", "0"),
    ],
    "reader": [
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("XADD", "tokenloom:{chat-1}:events", "*", "e", "x"),
        ("XREAD", "STREAMS", "tokenloom:{chat-2}:events", "0"),
        ("GET", "tokenloom:{chat-1}:log"),
        ("PUBLISH", "tokenloom:{chat-1}:tokens", "x"),
        ("RPUSH", "rq:queue:steps", "x"),
        ("EVAL", "return 1", "0"),
    ],
}


@pytest.mark.parametrize("user", FORBIDDEN)
def test_nothing_else_is_allowed(server: ValkeyServer, admin: Redis, user: str) -> None:
    before = admin.dbsize()
    with Redis.from_url(url(server, user)) as client:
        for command in FORBIDDEN[user]:
            try:
                answer = client.execute_command(*command)
            except redis.exceptions.ResponseError as error:
                refused = "permission" in str(error) or "ACL failure" in str(error)
                assert refused, f"{command}: {error}"  # noqa: PT017 - which command it was has to be told
            else:
                pytest.fail(f"{user} may {command}: {answer}")
    assert admin.dbsize() == before


def test_a_producer_cannot_stop_a_worker(server: ValkeyServer, worker: WorkerProcess) -> None:
    with Redis.from_url(url(server, "producer")) as client, pytest.raises(NoPermission):
        send_shutdown_command(client, "w")


def test_a_reader_follows_its_session(server: ValkeyServer, worker: WorkerProcess, admin: Redis) -> None:
    with Client(url(server, "producer")) as client:
        client.open("chat-1").step("hi", max_tokens=2, ignore_eos=True).result(20)
    with Redis.from_url(url(server, "reader")) as reader:
        answer: Any = reader.xread({"tokenloom:{chat-1}:events": "0"})
        assert len(answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]) >= 3
    assert refusals(admin) == []


def test_a_wrong_password_is_told_with_what_to_do(server: ValkeyServer, make_worker: MakeWorker) -> None:
    worker = make_worker(redis_url=url(server, "worker").replace(PASSWORD, "wrong"), start=False, engine="fake")
    worker.start(born=False)
    assert worker.wait() != 0
    assert "invalid username-password pair" in worker.output()
