"""Saying once that Redis is away, and once that it is back, however many threads notice."""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger("rq.worker")


class Contact:
    """Whether Redis answers, as the worker's threads last saw it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    def lost(self, error: Exception) -> None:
        """A call failed."""
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        log.error("tokenloom: could not connect to Redis instance: %s retrying, all state is kept", error)

    def made(self, asked: float) -> None:
        """A call of time.monotonic() ``asked`` was answered; one made before the trouble began proves nothing."""
        with self._lock:
            since = self._since
            if since is None or asked < since:
                return
            self._since = None
        log.info("tokenloom: Redis answers again after %.1f s", time.monotonic() - since)
