"""rediss:// from end to end, and a server that cannot be verified is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from security.tls_proxy import CERTIFICATE, TlsProxy
from tokenloom.producer import Client, RedisUnavailable
from valkey_server import ValkeyServer
from worker_process import WorkerProcess


@pytest.fixture
def proxy(valkey: ValkeyServer, redis: Redis) -> Iterator[TlsProxy]:
    proxy = TlsProxy(valkey.port)
    yield proxy
    proxy.close()


def test_a_worker_and_a_client_speak_tls(
    proxy: TlsProxy, redis: Redis, make_worker: Callable[..., WorkerProcess]
) -> None:
    url = f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={CERTIFICATE}"
    worker = make_worker(redis_url=url, engine="fake", options=("--with-scheduler",))
    with Client(url) as client:
        session = client.open("s", seed=1)
        step = session.step("hello", max_tokens=20, ignore_eos=True)
        assert sum(len(event.tokens) for event in step.events(timeout=20) if event.type == "tokens") == 20
        late = session.step("later", max_tokens=1, enqueue_in=0.1)
        assert late.result(20).usage.generated == 1
    plain = [client for client in redis.client_list() if client["name"] == worker.name]
    assert len(plain) <= proxy.accepted
    assert proxy.accepted >= 5  # the worker's threads have a connection each, and so has the client
    assert worker.terminate() == 0


def test_a_certificate_nobody_vouches_for_is_refused(proxy: TlsProxy) -> None:
    unverified = pytest.raises(RedisUnavailable, match="CERTIFICATE_VERIFY_FAILED")
    with Client(f"rediss://localhost:{proxy.port}/0", patience=0) as client, unverified:
        client.open("s")
    assert proxy.accepted == 0


def test_a_certificate_for_another_host_is_refused(proxy: TlsProxy) -> None:
    url = f"rediss://127.0.0.2:{proxy.port}/0?ssl_ca_certs={CERTIFICATE}"
    with Client(url, patience=0) as client, pytest.raises(RedisUnavailable):
        client.open("s")
