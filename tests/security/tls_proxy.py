"""TLS in front of a server that speaks none: what clients and workers see is a TLS server."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
#: Signed by itself, for localhost and 127.0.0.1. Its key is public: for tests only.
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"


class TlsProxy:
    """Listens on ``port`` with the test's certificate and hands everything on to ``target``, a plain port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, KEY)
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: Handshakes that were completed.
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.settimeout(10)
            client = self._context.wrap_socket(plain, server_side=True)
            client.settimeout(None)
        except OSError:  # what ssl raises is one
            plain.close()
            return
        self.accepted += 1
        server = socket.create_connection(("127.0.0.1", self._target))
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        self._pump(client, server)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
