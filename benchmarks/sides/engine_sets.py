"""tokenloom's engine once for each set of kernels that can be named here and once for ``auto``, in one process.

Each has the same history, and they take turns forward by forward, so that whatever else the machine does falls on all
of them alike.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.comparing.turns import turns
from benchmarks.sides.engine_ours import EngineOurs
from tokenloom.native_ext.native import core

#: Decodes of so many sessions with so many tokens, and prompts of so many.
DECODES = ((1, 16), (8, 16), (32, 16))
PROMPT = 128
#: Not measured beside others: it takes tens of times as long as any of them.
REFERENCE = "portable"


class EngineSets:
    """``auto`` first."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings``: those of EngineOurs."""
        self._engines: dict[str, EngineOurs] = {}
        named = [name for name in core.usable_kernels() if name != REFERENCE]
        for name in ("auto", *(named or [REFERENCE])):
            os.environ["TOKENLOOM_KERNELS"] = name
            self._engines[name] = EngineOurs(settings)
        self._work = ""

    def about(self) -> dict[str, Any]:
        return {"version": "", "note": "", "tables": {name: core.kernel_tables(name) for name in self._engines}}

    def work(self) -> dict[str, Any]:
        """What can be asked for."""
        return {"names": [f"decode {sessions} x {context}" for sessions, context in DECODES] + [f"prefill {PROMPT}"]}

    def plant(self, name: str) -> dict[str, Any]:
        """Make ready for work of that name."""
        self._work = name
        if name.startswith("decode"):
            sessions, _, context = name.split()[1:]
            for engine in self._engines.values():
                engine.plant([[int(sessions), int(context)]])
                engine.decode(2, 1.0)
        else:
            for engine in self._engines.values():
                engine.prefill(PROMPT, "warm")
        return {}

    def measure(self, turn: int) -> dict[str, Any]:
        """Seconds of one forward, and of CPU that it and those beside it took, by set."""
        found, cpu = {}, {}
        for name in turns(list(self._engines), turn):
            engine = self._engines[name]
            before = time.process_time()
            if self._work.startswith("decode"):
                found[name] = min(engine.decode(1, 0.0)["seconds"])
            else:
                found[name] = engine.prefill(PROMPT, f"prompt {turn}")["seconds"][0]
            cpu[name] = time.process_time() - before
        return {"seconds": found, "cpu": cpu}

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def start(settings: dict[str, Any]) -> EngineSets:
    """The side, ready."""
    return EngineSets(settings)
