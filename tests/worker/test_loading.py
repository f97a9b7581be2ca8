"""A signal while the real engine loads its model ends the load, in the middle of the native code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from tokenloom.native_ext import ggml
from tokenloom.schemas import MsgpackSerializer
from tokenloom.worker.batch_worker import BatchWorker


def packing_does(what: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has each report of progress do this; the bytes done, report by report."""
    reports: list[int] = []

    def report(done: int, total: int) -> None:
        reports.append(done)
        what()

    @contextmanager
    def watched(title: str) -> Iterator[Callable[[int, int], None]]:
        yield report

    monkeypatch.setattr(ggml, "progress_bar", watched)
    return reports


@pytest.fixture
def worker(redis: Redis, model_path: Path, monkeypatch: pytest.MonkeyPatch, signal_handlers: None) -> BatchWorker:
    monkeypatch.setenv("TOKENLOOM_MODEL", str(model_path))
    monkeypatch.setenv("TOKENLOOM_THREADS", "1")
    return BatchWorker(["steps"], name="a", connection=redis, serializer=MsgpackSerializer)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_weights_are_packed_ends_the_load(
    redis: Redis, worker: BatchWorker, monkeypatch: pytest.MonkeyPatch, which: signal.Signals
) -> None:
    reports = packing_does(lambda: signal.raise_signal(which), monkeypatch)
    assert worker.work(burst=True) is False
    assert len(reports) == 1, "nothing was packed after the first matrix"
    assert worker.cycle is None
    assert not redis.exists("rq:workers")


def test_a_signal_before_the_load_means_none(
    redis: Redis, worker: BatchWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = packing_does(lambda: None, monkeypatch)
    monkeypatch.setattr(worker._lease, "bury_last", lambda: signal.raise_signal(signal.SIGTERM))
    assert worker.work(burst=True) is False
    assert reports == []
    assert not redis.exists("rq:workers")
