"""`tokenloom worker` waits for a Redis that is away at start, and says at once what no waiting mends."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from redis import Redis, Sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from e2e.seen import wait_until
from security.tls_proxy import CERTIFICATE, TlsProxy
from tokenloom.worker import arrival, trouble
from tokenloom.worker.arrival import NoRedis, wait_for_redis
from valkey_server import ValkeyServer, find_binary, free_port
from worker_process import WorkerProcess

MakeServer = Callable[..., ValkeyServer]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "ANSWER_WITHIN", 0.5)
    monkeypatch.setattr(trouble, "LOOK", 0.5)


@pytest.fixture
def stranger() -> Iterator[Callable[..., int]]:
    """Makes servers that are no Redis; each one's port. ``says`` at once, or nothing; ``stays`` connected."""
    with ExitStack() as stack:

        def make(says: bytes = b"", *, stays: bool = False) -> int:
            listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

            def serve() -> None:
                kept = []
                with suppress(OSError):
                    while True:
                        client, _ = listener.accept()
                        client.sendall(says)
                        if stays:
                            kept.append(client)
                        else:
                            client.close()

            threading.Thread(target=serve, daemon=True).start()
            return int(listener.getsockname()[1])

        yield make


@pytest.fixture
def proxy(valkey: ValkeyServer, redis: Redis) -> Iterator[TlsProxy]:
    proxy = TlsProxy(valkey.port)
    yield proxy
    proxy.close()


def client(url: str, **options: object) -> Redis:
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)


def refusal(url: str, seconds: float = 60.0) -> str:
    """What a worker says at once."""
    began = time.monotonic()
    with pytest.raises(NoRedis) as caught:
        wait_for_redis(client(url), seconds)
    assert time.monotonic() - began < seconds / 4, "it waited"
    said = str(caught.value)
    assert "secret" not in said
    return said


def waits_because(url: str, caplog: pytest.LogCaptureFixture) -> str:
    """Why a worker waits: what stands in brackets, in its log and when it has given up."""
    with pytest.raises(NoRedis) as caught:
        wait_for_redis(client(url), 2.5)
    end = f": {arrival.WHAT_TO_DO}"
    (line,) = {message for message in caplog.messages if "waiting for it, 2.5 s at most" in message}
    given_up = str(caught.value)
    assert line.endswith(end)
    assert given_up.endswith(end)
    why = given_up.removesuffix(end).partition(" for 2.5 s (")[2].removesuffix(")")
    assert f"({why}), waiting" in line
    return why


# -- what no waiting mends ---------------------------------------------------------------------------------------------


def test_a_missing_and_a_wrong_password(valkey_server: MakeServer) -> None:
    server = valkey_server()
    with server.client() as admin:
        admin.config_set("requirepass", "swordfish")
    where = f"cannot use Redis at redis://127.0.0.1:{server.port}/0"
    assert refusal(server.tcp_url) == (
        f"{where}: a password is needed: name it in the URL, as in redis://USER:PASSWORD@HOST:PORT/0"
    )
    for login in (":secret", "nobody:secret"):
        said = refusal(server.tcp_url.replace("redis://", f"redis://{login}@"))
        assert said.startswith(f"{where}: user or password is wrong (")
    wait_for_redis(client(server.tcp_url.replace("redis://", "redis://:swordfish@")), 0)


def test_a_user_that_may_not_even_ping(valkey_server: MakeServer) -> None:
    server = valkey_server()
    with server.client() as admin:
        admin.execute_command(*["ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+hello", "+auth"])
    said = refusal(server.tcp_url.replace("redis://", "redis://narrow:secret@"))
    assert "this user of Redis may not do what a worker does" in said
    assert "'ping'" in said
    assert "docs/security.md" in said


def test_a_database_that_the_server_has_not(valkey: ValkeyServer) -> None:
    assert refusal(f"redis://127.0.0.1:{valkey.port}/99").endswith("/99: DB index is out of range")


def test_tls_where_the_server_speaks_none(valkey: ValkeyServer) -> None:
    said = refusal(f"rediss://:secret@localhost:{valkey.port}/0")
    assert said == (
        f"cannot use Redis at rediss://localhost:{valkey.port}/0: it speaks no TLS: write redis:// instead of rediss://"
    )


def test_no_tls_where_the_server_speaks_it(proxy: TlsProxy) -> None:
    said = refusal(f"redis://localhost:{proxy.port}/0")
    assert said.endswith(": it speaks TLS: write rediss:// instead of redis://")


def test_a_server_that_wants_our_certificate(proxy: TlsProxy) -> None:
    proxy._context.verify_mode = ssl.CERT_REQUIRED
    proxy._context.load_verify_locations(CERTIFICATE)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        proxy._context.minimum_version = proxy._context.maximum_version = version
        said = refusal(f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={CERTIFICATE}")
        assert "it wants a certificate of ours (" in said, version
        assert said.endswith("name it with ssl_certfile and ssl_keyfile")
        assert refusal(f"redis://localhost:{proxy.port}/0").endswith("write rediss:// instead of redis://"), version


def test_a_certificate_that_nobody_vouches_for(proxy: TlsProxy) -> None:
    said = refusal(f"rediss://localhost:{proxy.port}/0")
    assert said.endswith(
        ": its certificate is not vouched for (self-signed certificate): name the authority with ssl_ca_certs"
    )
    said = refusal(f"rediss://localhost:{proxy.port}/0?ssl_ca_certs=/no/such/file.pem")
    assert "a certificate or key that the settings name is not there" in said
    wait_for_redis(client(f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={CERTIFICATE}"), 0)


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x4a\x00\x00\x00\x0a8.0.33\x00"]
)
def test_the_port_of_something_else(stranger: Callable[..., int], greeting: bytes) -> None:
    assert "what answers there is no Redis (Protocol " in refusal(f"redis://127.0.0.1:{stranger(greeting)}/0")


def test_the_port_of_a_sentinel(tmp_path: Path) -> None:
    port = free_port()
    settings = tmp_path / "sentinel.conf"
    settings.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    process = subprocess.Popen([find_binary(), settings, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        url = f"redis://127.0.0.1:{port}/0"
        with client(url) as link:

            def up() -> bool:
                with suppress(Exception):
                    return bool(link.ping())
                return False

            wait_until(up)
        assert "it is a Sentinel: name its master" in refusal(url)
        nobody = Sentinel([("127.0.0.1", port)]).master_for("mine")  # type: ignore[no-untyped-call]
        with pytest.raises(
            NoRedis, match=rf"no Redis at master 'mine' of the sentinels at 127.0.0.1:{port} \(No master"
        ):
            wait_for_redis(nobody, 0)
    finally:
        process.kill()
        process.wait()


# -- what may pass -----------------------------------------------------------------------------------------------------


def test_nothing_listens_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert waits_because(f"redis://:secret@127.0.0.1:{free_port()}/0", caplog) == (
        "nothing listens there: Connection refused"
    )
    caplog.clear()
    assert waits_because(f"unix://{tmp_path / 'socket'}", caplog) == "nothing listens there: No such file or directory"
    assert "secret" not in caplog.text


def test_a_name_that_nobody_knows_yet(caplog: pytest.LogCaptureFixture) -> None:
    why = waits_because("redis://no-such-host.invalid:6379/0", caplog)
    assert why.startswith("the host's name is not known: ")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("stays", [True, False], ids=["silent", "closes"])
def test_something_that_accepts_and_says_nothing_yet(
    stranger: Callable[..., int], caplog: pytest.LogCaptureFixture, scheme: str, stays: bool
) -> None:
    """As a proxy does whose server is not there yet, or a server that hangs."""
    why = waits_because(f"{scheme}://127.0.0.1:{stranger(stays=stays)}/0", caplog)
    if stays:
        assert why == "it does not answer: it hangs, or is something else than Redis"
    else:
        assert why == "it closes the connection and says nothing"


def test_a_server_that_loads(valkey_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server = valkey_server(appendonly="no", save="3600 1")
    with server.client() as redis:
        with redis.pipeline(transaction=False) as pipe:
            for number in range(2000):
                pipe.set(f"key{number}", "x" * 1000)
            pipe.execute()
        redis.save()
    server.kill()
    server.options |= {"key-load-delay": 1000, "loading-process-events-interval-bytes": 1024}
    starting = threading.Thread(target=server.start)
    starting.start()
    wait_for_redis(client(server.tcp_url), 60)
    starting.join()
    assert any("(it is loading its data), waiting" in message for message in caplog.messages)


def test_a_server_that_comes_in_time(valkey_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rq.worker")
    server = valkey_server()
    server.kill()
    late = threading.Timer(0.7, server.start)
    late.start()
    wait_for_redis(client(server.tcp_url), 60)
    late.join()
    first, *_, last = caplog.messages
    assert "nothing listens there: Connection refused" in first
    assert last.startswith(f"tokenloom: Redis at {server.tcp_url} answers after ")


def test_nothing_is_said_of_a_server_that_is_there(valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rq.worker")
    before = signal.getsignal(signal.SIGTERM)
    wait_for_redis(client(valkey.url), 60)
    assert caplog.messages == []
    assert signal.getsignal(signal.SIGTERM) is before


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(make_worker: Callable[..., WorkerProcess]) -> Callable[..., WorkerProcess]:
    """Makes processes of `tokenloom worker`."""

    def make(*, redis_url: str, **settings: object) -> WorkerProcess:
        worker = make_worker(start=False, redis_url=redis_url, engine="fake", **settings)
        worker.command = [str(Path(sys.executable).with_name("tokenloom")), "worker", *worker.command[6:]]
        assert worker.command[2] == "-u"
        return worker

    return make


def test_the_command_waits_and_then_works(valkey_server: MakeServer, command: Callable[..., WorkerProcess]) -> None:
    server = valkey_server()
    server.kill()
    worker = command(redis_url=server.tcp_url).start(born=False)
    wait_until(lambda: "waiting for it, 60 s at most" in worker.output())
    server.start()
    worker.wait_born()
    assert "answers after" in worker.output()
    assert worker.output().count("no Redis at") == 1


def test_the_command_gives_up_in_the_end(command: Callable[..., WorkerProcess]) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    worker = command(redis_url=url, redis_wait=0.5, log="json").start(born=False)
    assert worker.wait(20) == 1
    line, end = worker.output().splitlines()
    assert json.loads(line)["level"] == "warning"
    assert end == (
        f"Error: no Redis at {url} for 0.5 s (nothing listens there: Connection refused): {arrival.WHAT_TO_DO}"
    )


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_when_told_to_while_it_waits(
    command: Callable[..., WorkerProcess], which: signal.Signals
) -> None:
    worker = command(redis_url=f"redis://127.0.0.1:{free_port()}/0").start(born=False)
    wait_until(lambda: "waiting for it" in worker.output())
    worker.send(which)
    assert worker.wait(5) == 0
    assert worker.output().splitlines()[-1].endswith("tokenloom: stopped on request while Redis was away")


def test_wrong_settings_are_told_before_the_wait(command: Callable[..., WorkerProcess]) -> None:
    worker = command(redis_url=f"redis://127.0.0.1:{free_port()}/0", redis_wait=-1).start(born=False)
    assert worker.wait(20) == 1
    assert worker.output().startswith("tokenloom: TOKENLOOM_REDIS_WAIT='-1': ")


def test_an_address_that_is_none(command: Callable[..., WorkerProcess]) -> None:
    worker = command(redis_url="http://:secret@localhost").start(born=False)
    assert worker.wait(20) == 1
    assert worker.output().startswith("Error: where Redis is said to be makes no sense: Redis URL must specify one of")
    assert "secret" not in worker.output()


def test_redis_is_looked_for_where_rq_looks(command: Callable[..., WorkerProcess], tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "rq_settings.py").write_text(f"REDIS_HOST = '127.0.0.1'\nREDIS_PORT = {port}\n")
    worker = command(redis_url="", redis_wait=0)
    worker.command[2:4] = ["-c", "rq_settings", "-P", str(tmp_path)]
    worker.start(born=False)
    assert worker.wait(20) == 1
    assert worker.output().startswith(f"Error: no Redis at redis://127.0.0.1:{port}/0 (")
