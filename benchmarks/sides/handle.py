"""The parent's end of a side: starts its process, asks it, and tells what became of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: A side that rests has no thread that would run, so many times so many seconds apart.
LOOKS, LOOK = 3, 0.015

#: Words of a line of a dying process that says why.
TELLING = ("error", "assert", "abort", "failed", "exception")


class SideLost(RuntimeError):
    """The side cannot be measured (any further); the message says why."""


class Side:
    """One side in a process of its own, idle but for the time between a question and its answer."""

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
        start: float = 120,
    ) -> None:
        """``kind`` is a module beside this one. Raises SideLost unless it is ready within ``start`` seconds."""
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (closed by close)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENLOOM_", "RQ_"))}
        folders = [str(ROOT), str(ROOT / "tests"), inherited.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sides.serve", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
            env={**inherited, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **(environment or {})},
            start_new_session=True,
        )
        #: What the side says of itself: ``version`` and ``note`` at least.
        self.about: dict[str, Any] = self._exchange(dict(settings), start)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def ask(self, method: str, /, *, within: float = 300, **arguments: Any) -> dict[str, Any]:
        """Call a method of the side. Raises SideLost when it fails, dies or takes longer than ``within`` seconds."""
        return self._exchange({"method": method, "arguments": arguments}, within)

    def settle(self, within: float = 1.0) -> None:
        """Wait until it computes no more: threads may watch for work long after the answer. At most so many seconds."""
        until = time.monotonic() + within
        looks = 0
        while looks < LOOKS and time.monotonic() < until:
            looks = 0 if computes(self._process.pid) else looks + 1
            time.sleep(LOOK)

    def close(self) -> None:
        """Let the side end; kill it, and all that it started, when it does not within ten seconds."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._kill()
        self._errors.close()

    def _exchange(self, request: dict[str, Any], within: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._errors.closed:
            raise SideLost("it has ended")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], within)
            line = self._process.stdout.readline() if ready else None
        except (BrokenPipeError, ValueError):
            line = b""
        if line is None:
            self._kill()
            self._errors.close()
            raise SideLost(f"no answer within {within:.0f} s")
        if not line:
            raise self._lost(ended(self._process.wait(10)))
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise SideLost(answer["failed"])
        return answer

    def _lost(self, what: str) -> SideLost:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        self._errors.close()
        telling = [line for line in lines if any(word in line.lower() for word in TELLING)] or lines
        return SideLost(f"{what}: {telling[-1][:200]}" if telling else what)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


def started(
    kind: str,
    settings: Mapping[str, Any],
    *,
    otherwise: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    start: float = 120,
) -> Side:
    """A side; should its process die at once, one with the settings of ``otherwise``, which its note then says.

    Raises SideLost.
    """
    try:
        return Side(kind, settings, environment=environment, start=start)
    except SideLost as lost:
        if otherwise is None or "its process" not in str(lost):
            raise
        side = Side(kind, {**settings, **otherwise}, environment=environment, start=start)
        side.about["note"] = "; ".join(filter(None, [side.about["note"], f"{otherwise}, for without it {lost}"]))
        return side


def computes(session: int) -> bool:
    """Whether a thread of a session's processes runs, or would on a free core. False where the system does not tell."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            if int(fields(process / "stat")[3]) == session:
                for thread in (process / "task").iterdir():
                    with suppress(OSError, IndexError):
                        if fields(thread / "stat")[0] == "R":
                            return True
    return False


def fields(stat: Path) -> list[str]:
    """Of a process or thread, from its state on: the name before it may hold anything."""
    return stat.read_text().rpartition(")")[2].split()


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"its process ended with {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"
