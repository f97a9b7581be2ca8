"""Why a job is still waiting, in words for whoever waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenloom.schemas.jobs import HOW_TO_RUN
from tokenloom.schemas.keys import Keys

from .talk import Ask, Talk


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``served`` tells whether any tokenloom worker is alive."""

    served: bool
    text: str


def diagnose(keys: Keys, queue: str, job: str) -> Talk[Diagnosis]:
    """Asks for the job's status, the queue's length and the workers; two round trips."""
    names, registered, waiting, status = yield Ask(
        (
            ("SMEMBERS", keys.workers),
            ("SMEMBERS", f"rq:workers:{queue}"),
            ("LLEN", f"rq:queue:{queue}"),
            ("HGET", f"rq:job:{job}", "status"),
        )
    )
    known = sorted(name.decode() for name in names)
    alive: list[str] = []
    if known:
        beats = yield Ask(tuple(("EXISTS", keys.worker(name)) for name in known))
        alive = [name for name, beat in zip(known, beats, strict=True) if beat]
    return Diagnosis(bool(alive), _text(queue, alive, registered, waiting, status))


def _text(queue: str, alive: list[str], registered: Any, waiting: int, status: bytes | None) -> str:
    state = f"its status is {status.decode()}" if status else "RQ has no such job"
    jobs = f"{waiting} job{'' if waiting == 1 else 's'} wait{'s' if waiting == 1 else ''} in queue {queue!r}"
    serving = {name.decode().rpartition(":")[2] for name in registered}
    if alive and not serving.intersection(alive):
        return f"{state}; {jobs}; no tokenloom worker serves it, and those alive serve others: {', '.join(alive[:5])}"
    if alive:
        return f"{state}; {jobs}; tokenloom workers alive: {', '.join(alive[:5])}{', ...' if len(alive) > 5 else ''}"
    others = f" ({len(registered)} other RQ workers are registered on it)" if registered else ""
    return f"{state}; {jobs}; no tokenloom worker is alive{others}: start one with `{HOW_TO_RUN}`"
