"""Whether ``auto`` is as fast as the best set of kernels that can be named here.

    python benchmarks/sets.py [--seconds 30] [--json FILE] [--hide]

One engine for ``auto`` and one for each set, in one process, forward by forward in turn (sides/engine_sets.py).
``--hide`` hides what the CPU has beyond AVX2 from the process, as on a machine that has no more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.comparing.spread import ratios, spread  # noqa: E402
from benchmarks.models.make import FILES, FOLDER  # noqa: E402
from benchmarks.sides.handle import SideLost, started  # noqa: E402

MOST_ROUNDS = 200


def measure(threads: int, seconds: float, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A row for each kind of work: spreads of each set's milliseconds, and of ``auto``'s ratios to the best set's.

    The best is the named one of the least median. Or why it is missing.
    """
    settings = {"model": str(FILES["Q4_1"]), "threads": threads, "kv_bytes": 1 << 30}
    try:
        side = started("engine_sets", settings, environment=environment)
    except SideLost as lost:
        return {"missing": str(lost)}
    rows = []
    try:
        names = side.ask("work")["names"]
        for name in names:
            side.ask("plant", name=name)
            began = time.monotonic()
            found: list[dict[str, dict[str, float]]] = []
            while not found or (time.monotonic() - began < seconds / len(names) and len(found) < MOST_ROUNDS):
                found.append(side.ask("measure", turn=len(found)))
            rows.append({"work": name, **compared(found)})
    except SideLost as lost:
        return {"missing": str(lost)}
    finally:
        side.close()
    return {"tables": side.about["tables"], "rows": rows}


def compared(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Of rounds of each set's "seconds" and "cpu", ``auto`` among them."""
    seconds, cpu = (
        {name: [found[of][name] for found in rounds] for name in rounds[0][of]} for of in ("seconds", "cpu")
    )
    sets = {name: spread([1000 * figure for figure in figures]) for name, figures in seconds.items()}
    best = min((name for name in sets if name != "auto"), key=lambda name: sets[name]["median"])
    return {
        "ms": sets, "best": best, "auto_to_best": ratios(seconds["auto"], seconds[best]),
        "cpu_to_best": ratios(cpu["auto"], cpu[best]),
    }  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    from benchmarks.comparing.forcing import hidden
    from benchmarks.comparing.sets_table import sets_table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--hide", action="store_true", help="what the CPU has beyond AVX2")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = measure(given.threads, given.seconds, hidden(FOLDER) if given.hide else None)
    print(sets_table(found))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
