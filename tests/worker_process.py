"""A worker as its users run it: `rq worker -w tokenloom.worker.BatchWorker ...` in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

WORKER_CLASS = "tokenloom.worker.BatchWorker"
SERIALIZER = "tokenloom.schemas.MsgpackSerializer"


def rq_command() -> str:
    """The `rq` beside this Python, or the one on PATH."""
    beside = Path(sys.executable).with_name("rq")
    found = str(beside) if beside.exists() else shutil.which("rq")
    if found is None:
        raise RuntimeError(f"no rq command beside {sys.executable} or on PATH")
    return found


class WorkerProcess:
    """One worker process. Its output goes to ``log``, appended to when it is started again.

    ``settings`` become the worker's environment: ``{"kv_bytes": 1 << 28}`` is ``TOKENLOOM_KV_BYTES=268435456``.
    ``options`` are further options of `rq worker`, such as ``["--burst"]``.
    """

    def __init__(
        self,
        redis_url: str,
        log: Path,
        *,
        name: str = "worker",
        queues: Sequence[str] = ("steps",),
        options: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.redis_url = redis_url
        self.log = log
        self.name = name
        self.command = [rq_command(), "worker", "-w", WORKER_CLASS, "-S", SERIALIZER, "-u", redis_url, "-n", name]
        self.command += [*options, *queues]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLOOM_", "RQ_"))}
        given = {f"TOKENLOOM_{k.upper()}": str(v) for k, v in (settings or {}).items()}
        self.environment = {**inherited, "PYTHONUNBUFFERED": "1", **given}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process. RuntimeError before ``start``."""
        if self.process is None:
            raise RuntimeError(f"worker {self.name} was not started")
        return self.process.pid

    def start(self, *, born: bool = True, timeout: float = 60.0) -> WorkerProcess:
        """Start, again after an end if need be, and unless ``born`` is False wait until it is registered with RQ."""
        if self.process is not None and self.process.poll() is None:
            raise RuntimeError(f"worker {self.name} runs already, pid {self.process.pid}")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        if born:
            self.wait_born(timeout)
        return self

    def wait_born(self, timeout: float = 60.0) -> None:
        """Return when RQ's record of the worker names this process. A dead predecessor's record does not count."""
        if self.process is None:
            raise RuntimeError(f"worker {self.name} was not started")
        deadline = time.monotonic() + timeout
        pid = str(self.pid).encode()
        with redis.Redis.from_url(self.redis_url) as client:
            while client.hget(f"rq:worker:{self.name}", "pid") != pid:
                ended = self.process.poll() is not None
                if ended or time.monotonic() > deadline:
                    what = f"ended with {self.process.returncode}" if ended else f"took over {timeout} s"
                    raise TimeoutError(f"worker {self.name} {what} before its birth:\n{self.output()}")
                time.sleep(0.02)

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the worker itself."""
        os.kill(self.pid, what)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code, once the process has ended (negative: the signal). TimeoutError with its log otherwise."""
        if self.process is None:
            raise RuntimeError(f"worker {self.name} was not started")
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"worker {self.name} still runs after {timeout} s:\n{self.output()}") from None

    def terminate(self, timeout: float = 60.0) -> int:
        """SIGTERM, a warm shutdown; the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL for the process and all it started. Killing a dead worker does nothing."""
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def output(self) -> str:
        """All it printed so far, earlier lives included."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
