"""Where jobs come from: RQ's queues and this worker's inbox, through the scripts that keep order and ownership."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal
from uuid import uuid4

from redis import Redis
from rq.executions import Execution
from rq.queue import Queue
from rq.utils import utcformat

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.keys import Keys

from .claimed import Claimed
from .guarded import GuardedJob
from .reading import MAX_STORED, Reader
from .scripts import Scripts

log = logging.getLogger("rq.worker")

#: Seconds after which RQ's own tools may call an execution abandoned. While a worker lives it refreshes them; when it
#: dies the next worker of any name puts its jobs back. This is for the case that no worker ever comes back, and it is
#: long because RQ fails what it calls abandoned, whoever looks: `rq info` is enough.
ABANDONED_AFTER = 24 * 3600

#: Most jobs of one call of the script, which nothing else in Redis can interrupt.
AT_ONCE = 64

Standing = Literal["ok", "lost", "suspended", "lapsed"]
_STANDINGS: tuple[Standing, ...] = ("lost", "ok", "suspended", "lapsed")


@dataclass(slots=True)
class Claim:
    """What one claim brought: nothing unless ``standing`` is ``ok``.

    ``lost``: this worker was taken for dead. ``lapsed``: it may be yet, unless its heartbeat comes first.
    """

    standing: Standing = "ok"
    jobs: list[Claimed] = field(default_factory=list)
    routed: int = 0
    requeued: int = 0
    skipped: int = 0


class JobSource:
    """Claims jobs for one worker. Raises redis errors; after one, ``recall`` before the next claim."""

    def __init__(
        self,
        link: Redis,
        keys: Keys,
        worker: str,
        incarnation: str,
        job_class: type[GuardedJob],
        job_link: Redis,
    ) -> None:
        """``job_link``: the connection that claimed jobs carry, for whoever ends them."""
        self.worker = worker
        self.incarnation = incarnation
        self._scripts = Scripts(link, keys)
        self._reader = Reader(job_class, job_link, keys.namespace)
        self._job_link = job_link

    def claim(self, most: int, queues: Sequence[Queue], *, in_turn: bool = False) -> Claim:
        """Up to ``most`` jobs: of this worker's inbox, then of ``queues`` in order, or one of each ``in_turn``."""
        total = Claim()
        while most > len(total.jobs):
            answer = self._call(min(AT_ONCE, most - len(total.jobs)), queues, in_turn)
            standing, claimed, unknown, skipped, routed, requeued, more = answer
            total.standing = _STANDINGS[standing]
            total.routed += routed
            total.requeued += requeued
            total.skipped += len(skipped)
            for id in skipped:
                log.info(
                    "tokenloom: dropped id %r from a queue: no such job, or it is not queued, or RQ makes no such ids",
                    id.decode(errors="replace"),
                )
            total.jobs.extend(self._claimed(*job) for job in claimed)
            if unknown:
                self._annotate(unknown)
            elif not more:
                break
        return total

    def recall(self, known: Iterable[str]) -> int:
        """Put back jobs that Redis says are ours and that are not among ``known``: the answer of a claim was lost."""
        return int(self._scripts("recall", [self.worker, self.incarnation, *known]))

    def remember_stop(self, claimed: Claimed) -> None:
        """Let a stop-job of this claim hold for the next one too, should there be one. From any thread."""
        self._scripts("stop", [claimed.id, "", claimed.execution.id])

    def pass_on_stop(self, job: str, execution: str = "") -> bool:
        """Let a stop that came here hold for whoever has the job, if it was this worker's. From any thread.

        ``execution``: the one that is to be stopped, if that was said. False when the job was not this worker's in its
        present run, or that is over.
        """
        return bool(self._scripts("stop", [job, "" if execution else self.worker, execution]))

    def _call(self, most: int, queues: Sequence[Queue], in_turn: bool) -> Any:
        now = datetime.now(timezone.utc)
        return self._scripts(
            "claim",
            [
                self.worker,
                self.incarnation,
                most,
                utcformat(now),
                now.timestamp(),
                ABANDONED_AFTER,
                int(in_turn),
                MAX_STORED,
                len(queues),
                uuid4().hex[:28],
                *(queue.key for queue in queues),
            ],
        )

    def _annotate(self, unknown: Sequence[Sequence[Any]]) -> None:
        """Say which sessions jobs need whose producers did not: read from the jobs while they are still queued."""
        arguments: list[str] = []
        for id, flat in unknown:
            read = self._reader.read(id.decode(), pairs(flat))
            arguments += [id.decode(), " ".join(read.sessions)]
        self._scripts("annotate", arguments)

    def _claimed(self, id: bytes, execution: bytes, flat: Sequence[bytes], epochs: Sequence[Any]) -> Claimed:
        raw = pairs(flat)
        read = self._reader.read(id.decode(), raw)
        job = read.job
        record = Execution(execution.decode(), job.id, connection=self._job_link, worker_name=self.worker)
        record._job = job
        owned = {session.decode(): int(epoch) for session, epoch in zip(epochs[::2], epochs[1::2], strict=True)}
        request, refusal = read.request, read.refusal
        if request is not None and not owned.keys() >= set(request.sessions):
            named = ", ".join(owned) or "none"
            refusal = TokenloomError.of(
                "invalid",
                f"meta.sessions names {named}, the job itself {', '.join(request.sessions)}",
                field="meta.sessions",
                value=named,
                limit=", ".join(request.sessions),
            )
            request = None
        seconds = job.timeout or Queue.DEFAULT_TIMEOUT
        return Claimed(
            job=job,
            execution=record,
            session=read.session,
            request=request,
            refusal=refusal,
            epochs=owned,
            deaths=number(raw.get(b"tokenloom_deaths")),
            alone=number(raw.get(b"tokenloom_alone")),
            stopped=raw.get(b"tokenloom_stop") == b"1",
            timeout=seconds if seconds > 0 else None,
            expires=time.monotonic() + seconds if seconds > 0 else None,
        )


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A hash from the flat list in which a script returns it."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def number(value: bytes | None) -> int:
    """A small counter of a job's hash; 0 for what is none."""
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else 0
