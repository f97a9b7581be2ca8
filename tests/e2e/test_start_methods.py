"""Workers that other programs start: by each method of multiprocessing, and by RQ's own commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokenloom.producer import Client, WorkerFailed
from tokenloom.schemas.jobs import HOW_TO_RUN
from worker_process import SERIALIZER, WORKER_CLASS, rq_command

Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run(tmp_path: Path, model_path: Path) -> Iterator[Run]:
    """Starts a command on the small real model; it and what it started are killed when the test ends."""
    running: list[subprocess.Popen[bytes]] = []
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLOOM_", "RQ_", "REDIS_"))}

    def start(*command: str | Path) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**inherited, "TOKENLOOM_MODEL": str(model_path), "TOKENLOOM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        running.append(process)
        return process

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait(20)


POOL = ("worker-pool", "--burst", "--num-workers", "2", "-w", WORKER_CLASS, "-S", SERIALIZER, "-u")


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn", "rq worker-pool"])
def test_two_workers_load_engines_of_their_own(
    how: str, client: Client, run: Run, redis_url: str, tmp_path: Path
) -> None:
    for number in range(4):
        client.open(f"s{number}", seed=1, wait=False)
    steps = [client.session(f"s{number}").step("Once upon", max_tokens=4) for number in range(4)]
    if how == "rq worker-pool":
        program = run(rq_command(), *POOL, redis_url, "steps")
    else:
        program = run(sys.executable, Path(__file__).with_name("started.py"), how, redis_url)
    results = [step.result(120) for step in steps]
    assert program.wait(120) == 0, (tmp_path / "log").read_text()
    assert len({result.text for result in results}) == 1
    assert [len(result.tokens) for result in results] == [4] * 4


@pytest.mark.parametrize("worker", ["rq.worker.SpawnWorker", "rq.worker.SimpleWorker", "rq.worker.Worker"])
def test_rqs_own_workers_say_which_to_run(worker: str, client: Client, run: Run, redis_url: str) -> None:
    step = client.session("s").step("hello")
    run(rq_command(), "worker", "-w", worker, "-S", SERIALIZER, "-u", redis_url, "steps")
    with pytest.raises(WorkerFailed) as caught:
        step.result(60)
    assert HOW_TO_RUN in caught.value.body.message
