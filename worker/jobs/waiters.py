"""Waiting for jobs without taking any: a thread a list, blocked in Redis on a move from the list's head to its head."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from redis import Redis

from .contact import Contact
from .links import private_link

log = logging.getLogger("rq.worker")

#: Seconds that one wait lasts at most: how long a thread outlives its worker, and a dead connection goes unnoticed.
ONE_WAIT = 3


class Waiters:
    """Calls ``wake`` when one of the lists has something, once per ``arm``."""

    def __init__(self, connection: Redis, lists: Sequence[str], contact: Contact, wake: Callable[[], None]) -> None:
        self._waiters = [_Waiter(connection, name, contact, wake) for name in lists]

    @property
    def watching(self) -> bool:
        """Whether all lists were armed and none has had anything since."""
        return all(waiter.waiting for waiter in self._waiters)

    def arm(self) -> None:
        """Wait, where no wait goes on."""
        for waiter in self._waiters:
            waiter.arm()

    def close(self) -> None:
        """End the threads, each after its present wait."""
        for waiter in self._waiters:
            waiter.close()


class _Waiter:
    def __init__(self, connection: Redis, name: str, contact: Contact, wake: Callable[[], None]) -> None:
        self._link = private_link(connection, ONE_WAIT + 5)
        self._name = name
        self._contact = contact
        self._wake = wake
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self.waiting = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def arm(self) -> None:
        if self.waiting or self._closed:
            return
        self.waiting = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tokenloom-wait-{self._name}", daemon=True)
            self._thread.start()
        self._orders.put(True)

    def close(self) -> None:
        self._closed = True
        self._orders.put(False)

    def _run(self) -> None:
        while self._orders.get():
            pause = 0.1
            while not self._closed:
                try:
                    # the same end of the same list: nothing moves, and nothing is lost whenever this thread dies
                    if self._link.blmove(self._name, self._name, ONE_WAIT, "LEFT", "LEFT") is not None:
                        break
                    pause = 0.1
                except Exception as error:
                    self._contact.lost(error)
                    time.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, 2.0)
            self.waiting = False
            self._wake()
        self._link.connection_pool.disconnect()
