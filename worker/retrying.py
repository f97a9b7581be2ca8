"""Repeating a Redis call through trouble that passes: lost connections, restarts, failovers, a full memory."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

log = logging.getLogger("rq.worker")

Answer = TypeVar("Answer")

_PASSING = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
    TryAgainError,
    NoScriptError,
)
_PASSING_PREFIXES = ("LOADING", "READONLY", "OOM", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOSCRIPT")
FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0


class GaveUp(Exception):
    """The worker is to stop now and Redis had still not answered."""


def transient(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, _PASSING):
        return True
    return isinstance(error, RedisError) and str(error).startswith(_PASSING_PREFIXES)


class Retrying:
    """Calls again, with growing and jittered waits, until there is an answer. Logs when trouble begins and ends."""

    def __init__(self, stopping: Callable[[], bool], load_scripts: Callable[[], None] = lambda: None) -> None:
        self._stopping = stopping
        self._load_scripts = load_scripts

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        """The call's answer. Raises GaveUp when told to stop meanwhile, and whatever is not transient."""
        wait, since, missing_script = FIRST_WAIT, None, False
        while True:
            try:
                if missing_script:
                    self._load_scripts()
                    missing_script = False
                answer = call()
            except Exception as error:
                if not transient(error):
                    raise
                if isinstance(error, NoScriptError) and not missing_script:
                    missing_script = True
                    continue
                if since is None:
                    since = time.monotonic()
                    log.warning("tokenloom: Redis does not answer (%s); keeping all state and trying again", error)
                if self._stopping():
                    raise GaveUp(f"stopped while Redis did not answer: {error}") from error
                time.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(wait * 2, LONGEST_WAIT)
            else:
                if since is not None:
                    log.info("tokenloom: Redis answers again after %.1f s", time.monotonic() - since)
                return answer
