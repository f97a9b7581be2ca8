"""What a run leaves for the checker: plain data, gathered by whoever watched, and readable as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Event = dict[str, Any]


@dataclass
class History:
    """One run.

    - ``jobs``: every job a producer enqueued: id, op, session and the arguments; the jobs of one session in the order
      in which they were enqueued. ``expect`` names the error code a job must end with.
    - ``events``: session -> [stream id, event] of its stream, in the order of the stream, as a subscriber read it.
    - ``kept``: session -> the stream ids that the stream itself has at the end, where it is still there.
    - ``answers``: job id -> what the producer's ``result()`` returned, each time: {"result": ...} or {"error": code}.
    - ``seen``: step id -> stream ids of the events that a follower of that step was given, in order.
    - ``late``: steps whose follower was given events without an id, which is right once the stream has gone.
    - ``cancels``: ids of steps whose cancellation was asked for.
    - ``endings``: job id -> {"status", "results"}: what RQ says of it at the end, and how many results it stores.
    - ``logs``: session -> token ids of its log at the end, of the sessions that were open then.
    """

    jobs: list[Job] = field(default_factory=list)
    events: dict[str, list[tuple[str, Event]]] = field(default_factory=dict)
    kept: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    cancels: set[str] = field(default_factory=set)
    endings: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, list[int]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it down, to be checked again later."""
        path.write_text(json.dumps({**asdict(self), "cancels": sorted(self.cancels), "late": sorted(self.late)}))

    @classmethod
    def load(cls, path: Path) -> History:
        """What ``save`` wrote."""
        fields = json.loads(path.read_text())
        fields["cancels"], fields["late"] = set(fields["cancels"]), set(fields["late"])
        fields["events"] = {name: [(id, event) for id, event in entries] for name, entries in fields["events"].items()}
        return cls(**fields)


@dataclass
class Reference:
    """What the same jobs did in an undisturbed run.

    ``steps``: step id -> {"tokens", "text", "reason", "error"}; a step that was cut short in the other run went on here
    to its own end. ``errors``: id of any other job that was refused -> its error's code. ``logs``: as in History.
    """

    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    logs: dict[str, list[int]] = field(default_factory=dict)
