"""The heartbeat thread: renews the lease, looks for dead workers, and for jobs that are to end and nobody told us."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from redis import Redis
from rq.utils import as_text, now, utcformat

from tokenloom.schemas.keys import Keys

from ..retrying import transient
from .active import ActiveJobs
from .claimed import Claimed, Interruption
from .contact import Contact
from .lease import Lease, dead_here, place
from .overheard import Overheard
from .scripts import Scripts
from .source import ABANDONED_AFTER

log = logging.getLogger("rq.worker")

#: Most jobs of one call of a script, which nothing else in Redis can interrupt.
AT_ONCE = 256

#: What watch.lua answers.
_WISHES: dict[int, Interruption] = {1: "cancelled", 2: "stopped"}

#: Seconds between two beats at the least, however often things change.
SOON = 0.1


@dataclass(frozen=True, slots=True)
class Findings:
    """Who is told what the pulse finds, on its own thread."""

    lost: Callable[[], None]
    unregistered: Callable[[], None]
    interrupt: Callable[[Claimed, Interruption], None]
    stats: Callable[[], Mapping[str, int | float | str]]
    state: Callable[[], str]


class Pulse:
    """Beats every ``every`` seconds from ``start`` to ``stop``; executions are refreshed every ``refresh_every``."""

    def __init__(
        self,
        link: Redis,
        keys: Keys,
        lease: Lease,
        active: ActiveJobs,
        contact: Contact,
        findings: Findings,
        *,
        every: float,
        refresh_every: float,
        rq_ttl: int,
    ) -> None:
        #: time.monotonic() before which neither this worker nor its claims may call another dead: everybody's lease may
        #: have lapsed for the same reason, and the others must get the chance to say so.
        self.polite_until = 0.0
        self.requeued = 0
        self.buried = 0
        self._link = link
        self._keys = keys
        self._scripts = Scripts(link, keys)
        self._overheard = Overheard(link, self._scripts)
        self._lease = lease
        self._active = active
        self._contact = contact
        self._findings = findings
        self._every = every
        self._refresh_every = refresh_every
        self._refreshed = time.monotonic()
        self._silent_since = 0.0
        self._rq_ttl = rq_ttl
        self._ended = False
        self._due = self._last = time.monotonic()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenloom-pulse", daemon=True)

    def start(self) -> None:
        """Begin beating."""
        self._thread.start()

    def soon(self) -> None:
        """Beat again a moment after the last time: what a beat tells has changed. From any thread."""
        self._due = min(self._due, self._last + SOON)
        self._wake.set()

    def stop(self) -> None:
        """End; a beat in progress is waited for a little."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def beat(self) -> None:
        """One beat. Raises redis errors."""
        self._overheard.write_down()  # before the dead are buried, and where the jobs of this worker are looked at next
        lease = self._lease
        incarnation = lease.incarnation
        pipe = self._link.pipeline(transaction=False)
        stats = {"buried": self.buried, **self._findings.stats()}
        arguments: list[str | int | float] = [
            lease.name,
            incarnation,
            lease.milliseconds,
            utcformat(now()),
            self._rq_ttl,
            self._findings.state(),
        ]
        self._scripts("heartbeat", [*arguments, *lease.fields(stats)], pipe)
        jobs = self._active.snapshot()
        for start in range(0, len(jobs), AT_ONCE):
            part = [each for claimed in jobs[start : start + AT_ONCE] for each in (claimed.id, claimed.execution.id)]
            self._scripts("watch", [lease.name, lease.milliseconds, *part], pipe)
        asked = time.monotonic()
        answer, *wishes = pipe.execute()
        self._contact.made(asked)
        if self._silent_since and time.monotonic() - self._silent_since > lease.milliseconds / 2000:
            self.polite_until = time.monotonic() + self._every
        self._silent_since = 0.0
        if answer == 0:
            if incarnation == lease.incarnation:
                self._findings.lost()
            return
        if answer == 2:
            log.warning("tokenloom: the lease had lapsed, and nobody took over meanwhile; going on")
            self.polite_until = time.monotonic() + self._every
        elif answer == 3:
            self._findings.unregistered()
        for claimed, wish in zip(jobs, chain(*wishes), strict=True):
            if wish:
                self._findings.interrupt(claimed, _WISHES[wish])
        self._refresh(jobs)
        if time.monotonic() >= self.polite_until:
            self._reap()

    def _refresh(self, jobs: list[Claimed]) -> None:
        if time.monotonic() - self._refreshed < self._refresh_every:
            return
        self._refreshed = time.monotonic()
        moment = now()
        for start in range(0, len(jobs), AT_ONCE):
            arguments: list[str | int | float] = [
                self._lease.name,
                utcformat(moment),
                moment.timestamp(),
                ABANDONED_AFTER,
            ]
            for claimed in jobs[start : start + AT_ONCE]:
                arguments += [claimed.id, claimed.execution.id, claimed.job.origin]
            self._scripts("refresh", arguments)

    def _reap(self) -> None:
        answer = self._scripts("reap", [self._lease.name, *self._dead_neighbours()])
        for name, back in zip(answer[::2], answer[1::2], strict=True):
            self.buried += 1
            self.requeued += back
            log.warning("tokenloom: worker %s is dead; %d jobs of it are back in their queues", name.decode(), back)

    def _dead_neighbours(self) -> list[str]:
        """Name and incarnation of each worker that has ended on this machine, whose lease need not be waited for."""
        members: Any = self._link.smembers(self._keys.workers)
        names = sorted(name.decode() for name in members if name.decode() != self._lease.name)
        if not names or not place():
            return []
        pipe = self._link.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.worker(name), "place", "pid", "begun", "incarnation")
        dead = []
        for name, fields in zip(names, pipe.execute(), strict=True):
            where, pid, begun, incarnation = (as_text(field or b"") for field in fields)
            if dead_here(where, pid, begun):
                dead += [name, incarnation]
        return dead

    def _run(self) -> None:
        while not self._ended:
            if self._wake.wait(max(0.0, self._due - time.monotonic())):
                self._wake.clear()
                continue
            self._last = time.monotonic()
            self._due = self._last + self._every
            try:
                self.beat()
            except Exception as error:
                if not transient(error):
                    log.exception("tokenloom: a heartbeat failed")
                self._contact.lost(error)
                self._silent_since = self._silent_since or time.monotonic()
                self._due = time.monotonic() + min(self._every, 0.25) * random.uniform(0.5, 1.0)
        self._overheard.close()


def rq_ttl_of(lease: float, worker_ttl: int) -> int:
    """Seconds that RQ's record of a worker outlives its last heartbeat: longer than the lease, as the scripts need."""
    return max(worker_ttl + 60, math.ceil(lease * 4))
