"""Stops that RQ sends to workers which are not there to hear them, heard by all the others."""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

import logging
import re
import time
from collections import deque
from typing import Any

from redis import Redis
from redis.client import PubSub
from redis.exceptions import ConnectionError, NoPermissionError
from rq.command import PUBSUB_CHANNEL_TEMPLATE, parse_payload

from ..retrying import transient
from .scripts import Scripts

log = logging.getLogger("rq.worker")

#: RQ's channels of commands, of all workers.
CHANNELS = PUBSUB_CHANNEL_TEMPLATE % "*"

#: Seconds of silence after which the connection has to prove itself: whoever only listens does not notice its end.
ASK_AFTER = 15.0

#: Most stops that wait to be written down.
MOST_WAITING = 1024

_JOB_ID = re.compile(r"[\w-]{1,512}", re.ASCII)


class Overheard:
    """What RQ tells any worker to stop, written into the job for the worker that has it or takes it next.

    RQ publishes a stop on the channel of the worker that the job names, and does not look whether anybody listens. One
    thread.
    """

    def __init__(self, link: Redis, scripts: Scripts) -> None:
        self._link = link
        self._scripts = scripts
        self._heard: PubSub | None = None
        self._allowed = True
        self._stops: deque[tuple[str, str, str]] = deque(maxlen=MOST_WAITING)
        self._last = 0.0
        self._asked = False

    def write_down(self) -> None:
        """All that came since the last call. Raises redis errors; what was heard is kept for the next call then."""
        self._listen()
        while self._stops:
            job, worker, execution = self._stops[0]
            written = self._scripts("stop", [job, worker, execution])
            self._stops.popleft()
            if written:
                log.debug("tokenloom: job %s is to be stopped, whoever has it", job)

    def close(self) -> None:
        """Listen no more."""
        if self._heard is not None:
            heard, self._heard = self._heard, None
            heard.close()

    def _listen(self) -> None:
        """Trouble here costs what is said until the next call, and nothing else: it is no reason to miss a beat."""
        if not self._allowed:
            return
        try:
            self._read()
        except NoPermissionError as error:
            self._allowed = False
            self.close()
            log.info("tokenloom: may not listen on %s; stops sent to workers that died are lost: %s", CHANNELS, error)
        except Exception as error:
            self.close()
            if not transient(error):
                log.exception("tokenloom: could not listen on %s", CHANNELS)

    def _read(self) -> None:
        if self._heard is None:
            self._heard = self._link.pubsub()
            self._heard.psubscribe(CHANNELS)
            self._last, self._asked = time.monotonic(), False
        message = self._heard.get_message(timeout=0.0)
        while message is not None:
            self._last, self._asked = time.monotonic(), False
            if message["type"] == "pmessage":
                self._note(message)
            message = self._heard.get_message(timeout=0.0)
        if time.monotonic() - self._last >= ASK_AFTER:
            if self._asked:
                raise ConnectionError(f"no answer on {CHANNELS}")
            self._heard.ping()
            self._last, self._asked = time.monotonic(), True

    def _note(self, message: dict[str, Any]) -> None:
        """Nonsense is ignored: its own worker says so."""
        try:
            worker = message["channel"].decode()[len(CHANNELS) - 1 :]
            payload = parse_payload(message)
            command, job, execution = payload["command"], str(payload["job_id"]), str(payload.get("execution_id", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if not _JOB_ID.fullmatch(job):
            return
        if command == "stop-job":
            self._stops.append((job, worker, ""))
        elif command == "stop-execution" and _JOB_ID.fullmatch(execution):
            self._stops.append((job, "", execution))
