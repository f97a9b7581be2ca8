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

    def made(self) -> None:
        """A call was answered."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            log.info("tokenloom: Redis answers again after %.1f s", time.monotonic() - since)
