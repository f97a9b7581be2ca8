"""The worker's log as JSON: one object a line, whoever logs it, with session, step and job ids as fields of their own.

Text is RQ's own format and needs nothing from here but ``printable``.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime, timezone
from typing import Any, Literal

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

#: Characters of a producer's text that a line of the log shows.
MOST_SHOWN = 200


class JsonLines(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``, ``worker``, whatever came as ``extra``, and ``exception``."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line break in it."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _COLOURS.sub("", record.getMessage()),
            "worker": self._worker,
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def use(style: Literal["text", "json"], worker: str) -> None:
    """Make every logger of this process write JSON lines, below error to stdout and the rest to stderr, as RQ does.

    Call it before RQ sets up its handlers: it adds none where a logger has one. ``text`` changes nothing.
    """
    if style == "text":
        return
    for name in ("rq.worker", "rq.job", "rq.queue", "rq.scheduler", "tokenloom"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    formatter = JsonLines(worker)
    out, err = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    out.addFilter(lambda record: record.levelno < logging.ERROR)
    err.setLevel(logging.ERROR)
    root = logging.getLogger()
    root.handlers[:] = [out, err]
    for handler in root.handlers:
        handler.setFormatter(formatter)
    logging.captureWarnings(True)


def about(session: str | None, job: str, *, step: bool = False) -> dict[str, str]:
    """The ``extra`` of a record about a job; a step's id is its job's."""
    fields = {"job": job} if session is None else {"session": session, "job": job}
    return {**fields, "step": job} if step else fields


def printable(text: str) -> str:
    """A producer's text for a line of the log: short, and without anything that could end the line or colour it."""
    return _CONTROLS.sub("?", text[:MOST_SHOWN]) + ("…" if len(text) > MOST_SHOWN else "")
