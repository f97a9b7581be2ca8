"""A worker says in words when Redis is set up so that sessions may be lost, and keeps saying it in its figures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from redis import Redis

from e2e.seen import wait_until
from job_tools import KEYS, field
from security.acl_lines import PASSWORD, acl_lines
from tokenloom.worker import durability
from tokenloom.worker.durability import Durability, client_command, size
from tokenloom.worker.jobs.links import private_link
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeServer = Callable[..., ValkeyServer]

#: A server that keeps what it is told.
SOUND = {"redis_risks": "", "redis_unchecked": "", "redis_memory": 0.0}


@pytest.fixture(autouse=True)
def _info_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rq.worker")


def figures_of(server: ValkeyServer) -> dict[str, int | float | str]:
    with server.client() as link:
        return Durability(link).figures()


def mend(server: ValkeyServer, said: str) -> None:
    """Do what a warning says: the command in it, with a client that speaks to this server."""
    (command,) = re.findall("`(.+)`", said)
    program, where, path, *arguments = shlex.split(command)
    assert (program, where, path) == ("valkey-cli", "-s", str(server.socket))
    with server.client() as admin:
        assert admin.execute_command(*arguments)


def fill(redis: Redis, until: float) -> None:
    """Keys of 64 KiB, until that share of maxmemory is used."""
    limit = int(redis.config_get("maxmemory")["maxmemory"])
    for number in range(10_000):
        if redis.info("memory")["used_memory"] >= until * limit:
            return
        redis.set(f"ballast{number}", b"x" * 65_536)


def test_nothing_is_said_of_a_server_that_keeps_what_it_is_told(
    valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert figures_of(valkey) == SOUND
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (
            {"maxmemory_policy": "allkeys-lru", "maxmemory": "512mb"},
            "eviction",
            "Redis evicts sessions when its maxmemory of 512mb is used up (maxmemory-policy allkeys-lru)",
        ),
        (
            {"maxmemory_policy": "volatile-ttl"},
            "eviction",
            "Redis evicts keys that expire, leases of workers and closed sessions among them, as soon as",
        ),
        ({"appendonly": "no"}, "no_aof", "Redis loses sessions when it goes down, since it has no append-only file"),
        ({"appendfsync": "no"}, "fsync", "Redis loses the last half minute or so when its machine goes down"),
    ],
    ids=["evicts all", "evicts some", "no file", "no fsync"],
)
def test_each_way_to_lose_sessions_is_said_with_the_command_that_mends_it(
    valkey_server: MakeServer, caplog: pytest.LogCaptureFixture, options: dict[str, str], name: str, words: str
) -> None:
    server = valkey_server(**options)
    with server.client() as link:
        watched = Durability(link)
        assert watched.figures()["redis_risks"] == name
        (said,) = caplog.messages
        assert said.startswith(f"tokenloom: {words}")
        assert caplog.records[0].levelname == "WARNING"
        watched.look()
        assert caplog.messages == [said], "once"
        mend(server, said)
        watched.look()
    assert watched.figures()["redis_risks"] == ""
    assert caplog.messages[1:] == [f"tokenloom: what was said of Redis ({name}) has been mended"]


def test_keys_that_were_evicted_are_counted(valkey_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server = valkey_server(maxmemory_policy="allkeys-lru", maxmemory="8mb")
    with server.client() as redis:
        for number in range(200):
            redis.set(f"ballast{number}", b"x" * 65_536)
        evicted = redis.info("stats")["evicted_keys"]
    figures_of(server)
    assert evicted > 0
    assert f"; {evicted} keys are gone already. Mend it" in caplog.messages[0]


def test_memory_that_is_nearly_used_up_is_noticed_while_the_worker_runs(
    valkey_server: MakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = valkey_server(maxmemory="16mb")
    with server.client() as redis:
        fill(redis, 0.5)
        watched = Durability(redis)
        assert 0.4 < float(watched.figures()["redis_memory"]) < 0.7
        fill(redis, 0.93)
        assert watched.figures()["redis_risks"] == "", "looked at a moment ago"
        monkeypatch.setattr(durability, "LOOK_EVERY", 0.0)
        watched._due = 0.0
        figures = watched.figures()
        assert figures["redis_risks"] == "memory"
        assert 0.9 <= float(figures["redis_memory"]) <= 1.0
        (said,) = caplog.messages
        assert said.startswith(
            "tokenloom: Redis has nearly used up its maxmemory of 16mb; from then on writes are refused"
        )
        assert said.endswith(" config set maxmemory 32mb`")
        redis.config_set("maxmemory", "17mb")
        assert watched.figures()["redis_risks"] == "memory", "a little less is no end of it"
        mend(server, said)
        assert watched.figures()["redis_risks"] == ""


def test_what_a_user_may_not_see_is_said_and_not_tried(
    valkey_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = valkey_server(maxmemory_policy="allkeys-lru")
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", *acl_lines()["worker"])
        admin.execute_command(*f"ACL SETUSER blind on >{PASSWORD} ~* +@all -info".split())

        def figures(user: str) -> dict[str, int | float | str]:
            url = server.tcp_url.replace("redis://", f"redis://{user}:{PASSWORD}@")
            with Redis.from_url(url) as link:
                return Durability(link).figures()

        assert figures("worker") == {
            "redis_risks": "eviction",
            "redis_unchecked": "appendfsync",
            "redis_memory": 0.0,
        }
        assert admin.acl_log() == [], "no attempt that would look like an intruder's"
        assert caplog.messages[1:] == [
            "tokenloom: this user of Redis may not see, so that it was not checked: appendfsync"
        ]
        assert figures("blind") == {
            "redis_risks": "",
            "redis_unchecked": "maxmemory-policy maxmemory appendonly",
            "redis_memory": 0.0,
        }


def test_a_server_without_config_is_no_trouble(valkey_server: MakeServer) -> None:
    """As providers have it."""
    server = valkey_server()
    with server.client() as admin:
        admin.execute_command(*["ACL", "SETUSER", "default", "-config"])
    assert figures_of(server) == {**SOUND, "redis_unchecked": "appendfsync"}


def test_a_server_that_is_away_is_asked_again_later(
    valkey_server: MakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "LOOK_EVERY", 0.0)
    server = valkey_server(appendonly="no")
    with private_link(server.client()) as link:
        watched = Durability(link)
        server.kill()
        assert watched.figures() == SOUND
        assert caplog.messages == []
        server.start()
        assert watched.figures()["redis_risks"] == "no_aof"
        server.kill()
        assert watched.figures()["redis_risks"] == "no_aof", "what was known stands"


@pytest.mark.parametrize(
    ("url", "client"),
    [
        ("redis://localhost:6379/0", "redis-cli"),
        ("redis://:secret@127.0.0.1:6380/2", "redis-cli -p 6380"),
        ("rediss://cache.example:6379/0", "redis-cli -h cache.example --tls"),
        ("unix:///run/redis.sock", "redis-cli -s /run/redis.sock"),
    ],
)
def test_the_command_reaches_the_server(url: str, client: str) -> None:
    assert client_command(Redis.from_url(url), valkey=False) == client


def test_sizes_are_such_as_the_server_takes(redis: Redis) -> None:
    assert (size(1), size(1 << 20), size(3 << 30)) == ("1mb", "1mb", "3072mb")


def test_a_worker_warns_at_start_and_tells_in_its_figures(
    valkey_server: MakeServer, make_worker: Callable[..., WorkerProcess]
) -> None:
    server = valkey_server(appendonly="no", maxmemory_policy="allkeys-lfu", maxmemory="1gb")
    worker = make_worker(name="w", redis_url=server.url, engine="fake")
    with server.client() as redis:
        assert wait_until(lambda: field(redis, KEYS.worker("w"), "redis_risks")) == "eviction no_aof"
        assert 0 < float(field(redis, KEYS.worker("w"), "redis_memory") or 0) < 0.1
    output = worker.output()
    assert output.index("Redis evicts sessions") < output.index("started with PID")
    assert output.count("Redis loses sessions when it goes down") == 1


def test_a_worker_of_a_sound_server_says_nothing_of_it(redis: Redis, make_worker: Callable[..., WorkerProcess]) -> None:
    worker = make_worker(name="w", engine="fake")
    wait_until(lambda: redis.hexists(KEYS.worker("w"), "redis_risks"))
    assert field(redis, KEYS.worker("w"), "redis_risks") == ""
    assert "Redis" not in worker.output()
