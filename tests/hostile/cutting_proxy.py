"""A TCP proxy before a server that can swallow an answer: the request was done, and its sender never hears of it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Listens on ``port``. After ``swallow()``, the next answer's connection is cut in its place."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._swallow = threading.Event()
        #: How many answers were swallowed.
        self.swallowed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def swallow(self) -> None:
        """Cut the connection instead of delivering the next answer."""
        self._swallow.set()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                for source, sink, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self._swallow.is_set():
                    self._swallow.clear()
                    self.swallowed += 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
