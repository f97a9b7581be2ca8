"""Redis in every kind of trouble: the store keeps its state, tries again, and what it commits is there once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis.exceptions
from redis import Redis

from hostile.cutting_proxy import CuttingProxy
from hostile.scribe import KEYS, Listener, Scribe, check, own
from tokenloom.worker.retrying import GaveUp, transient
from valkey_server import ValkeyServer

MakeServer = Callable[..., ValkeyServer]


@pytest.fixture
def scribe(redis_url: str, redis: Redis) -> Iterator[Scribe]:
    """At work on the shared server."""
    own(redis)
    scribe = Scribe(redis_url).open()
    scribe.start()
    yield scribe
    scribe.stopping = True


def working(server: ValkeyServer) -> Scribe:
    with server.client() as client:
        own(client)
    scribe = Scribe(server.url).open()
    scribe.start()
    scribe.reach(5)
    return scribe


def test_a_flushed_script_is_loaded_again(redis: Redis, scribe: Scribe) -> None:
    for _ in range(5):
        redis.script_flush()
        scribe.reach(3)
    check(redis, scribe.end())
    assert set(scribe.statuses) == {"ok"}


def test_killed_connections_cost_nothing(redis: Redis, scribe: Scribe) -> None:
    for _ in range(20):
        redis.client_kill_filter(_type="normal", skipme=True)
        scribe.reach(2)
    check(redis, scribe.end())


def test_no_memory_left_means_waiting_until_there_is(redis: Redis, scribe: Scribe) -> None:
    scribe.reach(5)
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    try:
        scribe.stands_still()
        with pytest.raises(redis_error("OutOfMemoryError")):
            redis.set("x", "y")
    finally:
        redis.config_set("maxmemory", 0)
    scribe.reach(5)
    check(redis, scribe.end())


def redis_error(name: str) -> type[Exception]:
    """redis-py's exception of this name."""
    error: type[Exception] = getattr(redis.exceptions, name)
    return error


def test_a_replica_is_waited_for_until_it_is_made_primary(valkey_server: MakeServer) -> None:
    primary, replica = valkey_server(repl_diskless_sync_delay=0), valkey_server()
    with primary.client() as first, replica.client() as second:
        own(first)
        Scribe(primary.url).open()
        second.replicaof("127.0.0.1", str(primary.port))
        until = time.monotonic() + 20
        while not second.exists(KEYS.events("s")):
            assert time.monotonic() < until
            time.sleep(0.05)
        scribe = Scribe(replica.url)
        scribe.session.state = "open"
        scribe.start()
        scribe.stands_still()
        assert scribe.count == 0
        with pytest.raises(redis_error("ReadOnlyError")):
            second.set("x", "y")
        second.replicaof("NO", "ONE")
        scribe.reach(5)
        check(second, scribe.end())
        assert first.get(KEYS.log("s")) is None


def test_a_disk_that_takes_no_snapshot_is_waited_for(valkey_server: MakeServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = valkey_server(dir=str(data), appendonly="no", save="3600 1")
    scribe = working(server)
    shutil.rmtree(data)
    with server.client() as client:
        client.bgsave()
        until = time.monotonic() + 20
        while client.info("persistence")["rdb_last_bgsave_status"] != "err":
            assert time.monotonic() < until
            time.sleep(0.05)
        scribe.stands_still()
        with pytest.raises(redis.exceptions.ResponseError, match="MISCONF") as caught:
            client.set("x", "y")
        assert transient(caught.value)
        client.config_set("stop-writes-on-bgsave-error", "no")
        scribe.reach(5)
        check(client, scribe.end())


def test_a_server_killed_and_started_again_goes_on_where_its_file_ends(valkey_server: MakeServer) -> None:
    server = valkey_server(appendfsync="always")
    scribe = working(server)
    for _ in range(3):
        server.kill()
        time.sleep(0.2)
        server.start()
        scribe.reach(5)
    with server.client() as client:
        check(client, scribe.end())


def test_a_server_that_loads_is_waited_for(valkey_server: MakeServer) -> None:
    server = valkey_server(appendonly="no", save="3600 1")
    scribe = working(server)
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for number in range(2000):
            pipe.set(f"ballast{number}", "x" * 1000)
        pipe.execute()
        count = scribe.end()
        client.save()
    server.kill()
    server.options |= {"key-load-delay": 1000, "loading-process-events-interval-bytes": 1024}
    starting = threading.Thread(target=server.start)
    starting.start()
    seen = False
    again = Scribe(server.url)
    again.session.state, again.count = "open", count
    again.session.log.extend((1 << 24) + number for number in range(1, count + 1))
    again.start()
    with server.client() as client:
        while starting.is_alive():
            try:
                client.get("x")
            except redis.exceptions.BusyLoadingError:
                seen = True
            except redis.exceptions.ConnectionError:
                pass
            time.sleep(0.01)
        assert seen, "the server was never seen loading"
        again.reach(5)
        check(client, again.end())


def test_a_commit_whose_answer_was_lost_is_there_once_and_told_once(redis: Redis, valkey: ValkeyServer) -> None:
    own(redis)
    listener = Listener(redis)
    proxy = CuttingProxy(valkey.port)
    scribe = Scribe(f"redis://127.0.0.1:{proxy.port}/0").open()
    for _ in range(10):
        scribe.commit()
        proxy.swallow()
        scribe.commit()
    assert proxy.swallowed == 10
    assert scribe.statuses.count("again") == 10
    ids = check(redis, scribe.count)
    assert listener.ids() == ids
    proxy.close()


def test_a_write_that_redis_did_before_it_died_is_not_done_twice(valkey_server: MakeServer) -> None:
    server = valkey_server(appendfsync="always")
    with server.client() as client:
        own(client)
        proxy = CuttingProxy(server.port)
        scribe = Scribe(f"redis://127.0.0.1:{proxy.port}/0").open()
        scribe.commit()
        proxy.swallow()
        scribe.start()
        until = time.monotonic() + 10
        while not proxy.swallowed:
            assert time.monotonic() < until
        server.kill()
        server.start()
        scribe.reach(5)
        assert "again" in scribe.statuses
        check(client, scribe.end())
    proxy.close()


def test_a_lost_session_is_told_after_the_trouble_and_nothing_is_published(redis: Redis, scribe: Scribe) -> None:
    scribe.reach(5)
    redis.config_set("maxmemory", 1)
    try:
        scribe.stands_still()
        held = scribe.count
    finally:
        redis.hdel(KEYS.session("s"), "owner")  # before the first one gets through again
        redis.config_set("maxmemory", 0)
    scribe.join(10)
    assert isinstance(scribe.error, AssertionError)
    assert "status='lost'" in str(scribe.error)
    assert scribe.count == held
    check(redis, held)


def test_who_is_told_to_stop_gives_up_and_has_committed_nothing(valkey_server: MakeServer) -> None:
    server = valkey_server(appendfsync="always")
    scribe = working(server)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        scribe.stands_still()
        scribe.stopping = True
        scribe.join(10)
        assert isinstance(scribe.error, GaveUp)
        client.config_set("maxmemory", 0)
        check(client, scribe.count)
