"""The long run by hand: python -m chaos --seconds 1800 --seed 1 [--model FILE.gguf]. Exit code 1 after a violation."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.run import Plan, chaos, judge_again


def main() -> int:
    """Run, and print one page."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="how long workers are disturbed")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    parser.add_argument("--model", type=Path, help="run the real engine on this GGUF file instead of the fake")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two disturbances")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds between two requests of one producer")
    parser.add_argument("--folder", type=Path, help="where the run's files go; kept only after a violation by default")
    parser.add_argument("--again", action="store_true", help="only judge the history in --folder once more")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and server are ended as well
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    plan = Plan(given.seconds, given.seed, folder, given.model, every=given.every, pace=given.pace)
    report = judge_again(plan) if given.again else chaos(plan)
    print(report)
    if not report.violations and given.folder is None:
        shutil.rmtree(folder)
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
