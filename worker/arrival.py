"""Waiting for Redis at start: it may be a little late. What waiting does not mend is said at once."""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from redis import Redis

from .jobs.links import private_link
from .retrying import FIRST_WAIT, LONGEST_WAIT
from .trouble import Trouble, address, is_sentinel, trouble_with

log = logging.getLogger("rq.worker")

#: Seconds after which an attempt without an answer is given up, for the next one.
ANSWER_WITHIN = 3.0

WHAT_TO_DO = "start one, for example with `valkey-server`, or name another with --url or RQ_REDIS_URL"


class NoRedis(Exception):
    """Redis cannot be used, for a reason a person can mend; the message says what to do."""


class StoppedWaiting(BaseException):
    """A signal came while Redis was waited for. No Exception, so that nothing on the way takes it for trouble."""


def wait_for_redis(connection: Redis, seconds: float) -> None:
    """Return when Redis answers, after at most ``seconds`` of waiting for one that is away.

    Each reason for the wait is logged once. Raises NoRedis, at once for what no waiting mends (password, TLS, a port of
    something else), and StoppedWaiting.
    """
    began, pause = time.monotonic(), FIRST_WAIT
    said = None
    where = address(connection)
    with _signals_end_it(), private_link(connection, ANSWER_WITHIN) as link:
        while True:
            trouble = _attempt(link)
            waited = time.monotonic() - began
            if trouble is None:
                if said is not None:
                    log.info("tokenloom: Redis at %s answers after %.1f s", where, waited)
                return
            if not trouble.passing:
                raise NoRedis(f"cannot use Redis at {where}: {trouble.text}")
            if waited >= seconds:
                how_long = f" for {seconds:g} s" if seconds else ""
                raise NoRedis(f"no Redis at {where}{how_long} ({trouble.text}): {WHAT_TO_DO}")
            if trouble.text != said:
                said = trouble.text
                log.warning(
                    "tokenloom: no Redis at %s (%s), waiting for it, %g s at most: %s", where, said, seconds, WHAT_TO_DO
                )
            time.sleep(min(pause * random.uniform(0.5, 1.0), max(0.0, seconds - waited)))
            pause = min(pause * 2, LONGEST_WAIT)


def _attempt(link: Redis) -> Trouble | None:
    try:
        link.ping()
    except Exception as error:
        return trouble_with(link, error)
    if is_sentinel(link):
        return Trouble(False, "it is a Sentinel: name its master in a module for --config, as SENTINEL")
    return None


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Where that is allowed, in the main thread. The first process of a container would ignore SIGTERM without it."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise StoppedWaiting

    try:
        before = {which: signal.signal(which, stop) for which in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
