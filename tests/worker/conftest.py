"""Rigs over the fake engine, small enough that pages and numbers run short when a test wants them to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rig import Rig

from tokenloom.native_ext.engine import Engine, EngineSettings
from tokenloom.native_ext.fake import FakeEngine
from worker_process import WorkerProcess

TESTS = str(Path(__file__).parent.parent)


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Those that a worker in this process installs do not outlive the test."""
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)


@pytest.fixture
def fake() -> Callable[..., Engine]:
    """Makes fake engines; ``pages`` bounds their cells."""

    def make(pages: int | None = None, **settings: Any) -> Engine:
        if pages is not None:
            settings["kv_bytes"] = pages * FakeEngine(EngineSettings(model=None)).geometry.page_bytes  # type: ignore[arg-type]
        return FakeEngine(EngineSettings(model=None, **settings))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_rig(redis: Redis, fake: Callable[..., Engine]) -> Iterator[Callable[..., Rig]]:
    """Makes rigs over one server: ``engine`` settings go to the fake engine, the rest to the worker."""
    made: list[Rig] = []

    def make(engine: Engine | None = None, *, pages: int | None = None, **settings: Any) -> Rig:
        made.append(Rig(redis, engine or fake(pages=pages), **settings))
        return made[-1]

    yield make
    for rig in made:
        rig.cycle.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """One worker's cycle over a fake engine."""
    return make_rig()


@pytest.fixture
def scripted(make_worker: Callable[..., WorkerProcess]) -> Callable[..., WorkerProcess]:
    """Makes worker processes with the scripted cycle."""

    def make(*, start: bool = True, environment: dict[str, str] | None = None, **options: object) -> WorkerProcess:
        worker = make_worker(start=False, engine="fake", **options)
        worker.command[worker.command.index("-w") + 1] = "scripted_worker.ScriptedWorker"
        path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
        worker.environment.update(PYTHONPATH=path, **(environment or {}))
        return worker.start() if start else worker

    return make
