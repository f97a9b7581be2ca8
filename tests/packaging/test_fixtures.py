"""What other tests build on: the server's restart and the worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis as redis_py

from valkey_server import ValkeyServer
from worker_process import WorkerProcess


def test_server_keeps_its_data_and_addresses_over_a_kill(valkey_server: Callable[..., ValkeyServer]) -> None:
    server = valkey_server(appendfsync="always")
    with server.client() as client:
        client.set("kept", "yes")
        before = server.port
        server.kill()
        with pytest.raises(redis_py.ConnectionError):
            client.ping()
        server.start()
        assert client.get("kept") == b"yes"
    with redis_py.Redis.from_url(server.tcp_url) as over_tcp:
        assert over_tcp.get("kept") == b"yes"
    assert server.port == before


def test_shared_server_is_empty(redis: redis_py.Redis) -> None:
    assert redis.dbsize() == 0
    redis.set("left", "behind")


def test_shared_server_is_empty_again(redis: redis_py.Redis) -> None:
    assert redis.dbsize() == 0


def test_worker_that_ends_before_its_birth_is_shown_with_its_output(redis_url: str, tmp_path: Path) -> None:
    worker = WorkerProcess(redis_url, tmp_path / "log", options=["--no-such-option"])
    with pytest.raises(TimeoutError, match=r"ended with 2(.|\n)*--no-such-option"):
        worker.start()


def test_model_is_a_gguf_file(model_path: Path) -> None:
    with model_path.open("rb") as file:
        assert file.read(4) == b"GGUF"
