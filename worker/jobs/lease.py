"""A worker's claim to its name: one living process a name, the jobs of a dead one put back before anything else."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path
from uuid import uuid4

from redis import Redis
from rq.defaults import RQ_KEY_PREFIX
from rq.utils import as_text

from tokenloom.schemas.keys import Keys

from .scripts import Scripts


class NameTaken(ValueError):
    """Another living worker has the name; RQ's own words."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There exists an active worker named {name!r} already")


def _stat(pid: int) -> list[str]:
    """The kernel's account of a process, from its state on; empty where there is none to be had."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def process_begun(pid: int) -> str:
    """When a process of this machine began, in the kernel's own count; "" where that cannot be known."""
    stat = _stat(pid)
    return stat[19] if len(stat) > 19 else ""


@cache
def place() -> str:
    """Where process ids mean the same as here: this boot of this machine, and its namespace of process ids.

    "" where that cannot be known. Containers may share a host's name, but not this.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_lives(pid: int) -> bool:
    """Whether this machine runs a process of that id. One that has ended and was not yet waited for does not run."""
    if _stat(pid)[:1] in (["Z"], ["X"]):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def surely_dead(host: str, pid: str, begun: str) -> bool:
    """Whether a worker that described itself so has ended. False also means that nobody here can tell.

    A process id comes back: in a restarted container often at once, as our own.
    """
    if host != socket.gethostname() or not pid.isdigit():
        return False
    number = int(pid)
    if number == os.getpid():
        return begun != process_begun(number) or not begun
    if not process_lives(number):
        return True
    now = process_begun(number)
    return bool(begun and now) and begun != now


def dead_here(place_of: str, pid: str, begun: str) -> bool:
    """Whether a worker of this very place has ended. False where that cannot be told from here."""
    return place_of == place() != "" and surely_dead(socket.gethostname(), pid, begun)


class Lease:
    """The lease of one worker name. ``incarnation`` is of this life; ``renew_as_new`` begins another."""

    def __init__(self, link: Redis, keys: Keys, name: str, seconds: float) -> None:
        self.name = name
        self.incarnation = uuid4().hex
        self.milliseconds = max(1, round(seconds * 1000))
        self._link = link
        self._keys = keys
        self._scripts = Scripts(link, keys)
        self._static = {
            "pid": str(os.getpid()),
            "host": socket.gethostname(),
            "begun": process_begun(os.getpid()),
            "place": place(),
        }

    def fields(self, stats: dict[str, int | float | str]) -> list[str | int | float]:
        """What the worker's hash holds besides its incarnation, as field, value, ..."""
        held = {**stats, **self._static, "beat": f"{time.time():.3f}"}
        return [part for pair in held.items() for part in pair]

    def bury_last(self) -> int:
        """Put back what the last holder of the name had, and leave the name free; how many jobs that were.

        Raises NameTaken when a living worker has the name. Waits where only a lapse of its lease can tell.
        """
        return self._register(0)

    def take(self, *, blameless: bool = False) -> int:
        """Take the name, and put back what its last holder had; how many jobs that were. Raises NameTaken.

        ``blameless``: the last holder was this process, and did not die of its jobs.
        """
        return self._register(self.milliseconds, blameless)

    def _register(self, milliseconds: int, blameless: bool = False) -> int:
        while True:
            dead = self._dead_incarnation()
            arguments = [self.name, self.incarnation, dead, milliseconds, int(blameless), *self.fields({})]
            back = int(self._scripts("register", arguments))
            if back >= 0:
                return back

    def begin_again(self) -> None:
        """A new life under the same name, not yet taken."""
        self.incarnation = uuid4().hex

    def retire(self, *, blame: bool = False) -> int:
        """Put everything back and end the lease; how many jobs went back, -1 when the lease was lost before."""
        return int(self._scripts("retire", [self.name, self.incarnation, int(blame)]))

    def _dead_incarnation(self) -> str:
        """The incarnation whose place may be taken, "" when there is none. Raises NameTaken."""
        seen = None
        while True:
            ours = self._read(self._keys.worker(self.name))
            if not ours:
                rq = self._read(f"{RQ_KEY_PREFIX}:worker:{self.name}")
                if rq and "death" not in rq and "tokenloom" not in rq and "pid" in rq:
                    raise NameTaken(self.name)  # a worker of another kind
                return ""
            incarnation = ours.get("incarnation", "")
            if incarnation == self.incarnation:
                return incarnation
            if surely_dead(ours.get("host", ""), ours.get("pid", ""), ours.get("begun", "")):
                return incarnation
            if ours.get("host") == socket.gethostname() or (seen is not None and ours.get("beat") != seen):
                raise NameTaken(self.name)
            seen = ours.get("beat")
            time.sleep(0.1)

    def _read(self, key: str) -> dict[str, str]:
        return {as_text(name): as_text(value) for name, value in self._link.hgetall(key).items()}
