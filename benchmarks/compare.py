"""tokenloom, llama.cpp and OpenVINO GenAI side by side, in turn, on the same model files, tokens and machine.

    python benchmarks/compare.py [--quick] [--json FILE] [--markdown FILE] [--docs docs/performance.md]

See README.md in this folder for who takes part and what the figures mean; `make bench-setup` makes what is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.comparing.plan import Comparison, Plan  # noqa: E402
from benchmarks.comparing.tables import goals, render  # noqa: E402

#: Between these, a document's tables are replaced.
BEGIN, END = "<!-- figures: written by benchmarks/compare.py -->", "<!-- end of figures -->"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the goals' cases only, at most five rounds of each")
    parser.add_argument("--force", choices=("avx2",), help="keep every side that allows it to this instruction set")
    parser.add_argument("--json", type=Path, help="write every figure and ratio to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--docs", type=Path, help="put the tables between the marks of this document")
    parser.add_argument("--render", type=Path, help="measure nothing; take the figures of this JSON file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every side")
    parser.add_argument("--models", nargs="+", help="only these of Q4_1, Q8_0, Q4_K_M, 1.2B")
    parser.add_argument("--cases", nargs="+", help="only cases whose names contain one of these")
    parser.add_argument(
        "--llama",
        choices=("native", "wheel", "both"),
        help="builds of llama.cpp (default: both; with --quick native, or wheel where that is not built)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="what the run may take (default 13.5; 4 with --quick): the less, the fewer rounds; no case is left out",
    )
    parser.add_argument("--smoke", action="store_true", help="one round of two steps: does it run at all?")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure or read, show, write."""
    given = parse()
    if given.render is not None:
        report = json.loads(given.render.read_text())
    else:
        began = time.monotonic()
        plan = Plan(
            quick=given.quick, smoke=given.smoke, threads=given.threads, models=given.models, cases=given.cases,
            llama=given.llama, minutes=given.minutes or (4.0 if given.quick else 13.5), force=given.force,
        )  # fmt: skip
        report = Comparison(
            plan, say=lambda line: print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)
        ).run()
    text = render(report)
    print("\n" + (text if given.render is None else goals(report)))
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    if given.markdown is not None:
        given.markdown.write_text(text)
    if given.docs is not None:
        put(given.docs, text)
    return 0


def put(document: Path, text: str) -> None:
    """Replace what is between the marks. ValueError when the document has none."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no marks {BEGIN} and {END}")
    document.write_text(f"{before}{BEGIN}\n\n{text.rstrip()}\n\n{END}{after}")


if __name__ == "__main__":
    raise SystemExit(main())
