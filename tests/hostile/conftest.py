"""One arena for all tests of a module: the worker that survives the first attack must survive the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile.arena import Arena
from valkey_server import ValkeyServer
from worker_process import WorkerProcess


@pytest.fixture(scope="session")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which anything that runs leaves a file."""
    return tmp_path_factory.mktemp("canary")


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, canary: Path) -> Iterator[Arena]:
    server = ValkeyServer()
    log = tmp_path_factory.mktemp("hostile") / "worker.log"
    worker = WorkerProcess(
        server.url, log, name="hostile", settings={"engine": "fake", "fake_seconds": 0.0005, "log": "json"}
    )
    try:
        server.start()
        worker.start()
        with server.client() as redis:
            arena = Arena(redis, worker)
            yield arena
            arena.bystander.end()
            arena.alive()
            assert arena.bystander.longest < 10, "an attack kept the stream beside it waiting"
            assert not list(canary.iterdir()), "something ran"
            output = worker.output()
            for sign in ("unexpected error", "could not be stored", "lease had lapsed", "taken for dead"):
                assert sign not in output, f"{sign!r} in the worker's output:\n{output[-5000:]}"
    finally:
        worker.kill()
        server.close()
