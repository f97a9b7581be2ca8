"""How near the kernels come to what the machine can do, measured in the same run.

    python benchmarks/roofline.py [--threads 2] [--kernels avx2] [--quick] [--json FILE]

The peaks are those of peak.cpp, built here: int8 products by the instruction of the set that is in use, f32 FMAs of its
width, reads from L2 and from memory. A multiplication counts two operations for each weight and token, and all of the
packed weights as read once; its time has the rounding of activations and the threads' meeting in it. The ratio is to
ggml's own op for the same product (`ggml_mul_mat` in a plain buffer).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.comparing.compiler import compiled  # noqa: E402
from benchmarks.comparing.instruction_sets import InstructionSet, set_of  # noqa: E402
from tokenloom.native_ext.native import core  # noqa: E402

#: Type of weights, what the matrix is, rows, columns: of SmolLM2-135M and of the file of 1.2 billion parameters.
MATRICES = [
    ("Q4_1", "135M gate+up", 3072, 576),
    ("Q4_1", "135M down", 576, 1536),
    ("Q8_0", "135M gate+up", 3072, 576),
    ("Q4_K", "1.2B gate+up", 16384, 2048),
    ("Q6_K", "1.2B down", 2048, 8192),
]
TOKENS = (1, 8, 32, 128, 512)
QUICK_TOKENS = (1, 32, 512)
#: Bytes of a position's keys and values: SmolLM2-135M has 30 layers and 3 KV heads of 64, in float16.
CELL_BYTES = 30 * 2 * 3 * 64 * 2


#: Seconds that a figure is measured for: ours, and ggml's op.
LONG, SHORT = (0.25, 0.1), (0.08, 0.03)


def peaks(threads: Sequence[int], products: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row for each number of threads. RuntimeError when there is no compiler or it fails."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(__file__).with_name("peak.cpp")
        program = compiled(source, Path(folder) / "peak", "-O3", "-ffp-contract=fast")
        command = [str(program), products, *map(str, threads)]
        run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


def repeats(first: float, seconds: float, least: int = 1, most: int = 200) -> int:
    """How often something is done that took ``first`` seconds, in about so many."""
    return max(least, min(most, int(seconds / first))) if first > 0 else most


def typical(run: Callable[[int], tuple[Any, Sequence[float]]], seconds: float, least: int = 1) -> float:
    """The median of as many repetitions as go into so many seconds, ``least`` at least; if that is 1, one may do.

    ``run`` takes their number and returns a result and the seconds of each.
    """
    first = run(1)[1][0]
    if least == 1 and first >= seconds:
        return float(first)
    return statistics.median(run(repeats(first, seconds, least))[1])


def share(value: float, peak: float | None) -> float | None:
    """Of a peak, None where there is none."""
    return value / peak if peak else None


def multiply(peak: dict[int, dict[str, Any]], kernels: str, quick: bool) -> list[dict[str, Any]]:
    """A row for each matrix, number of tokens and number of threads."""
    from benchmarks.kernels.weights import random_weights

    instructions = set_of(kernels)
    for_ours, for_ggml = SHORT if quick else LONG
    rows_found = []
    for kind, name, rows, columns in MATRICES:
        data = random_weights(kind, rows, columns)
        packed = core.PackedMatrix(kind, data)
        for tokens in QUICK_TOKENS if quick else TOKENS:
            x = np.random.default_rng(tokens).standard_normal((tokens, columns), np.float32)
            for threads, most in peak.items():
                work = 2.0 * rows * columns * tokens
                ours = partial(core.multiply, [packed], x, kernels, threads)
                theirs = partial(core.ggml_multiply, kind, data, x, threads)
                seconds, plain = typical(ours, for_ours, 3), typical(theirs, for_ggml)
                gops, gbs = work / seconds / 1e9, packed.bytes / seconds / 1e9
                row = {
                    "type": kind, "matrix": f"{name}, {rows} x {columns}", "tokens": tokens, "threads": threads,
                    "microseconds": 1e6 * seconds, "gops": gops, "gbs": gbs, "ratio_to_ggml": plain / seconds,
                    "of_peak": share(gops, most["products"].get(instructions.products)),
                    "of_memory": share(gbs, most["memory"]),
                }  # fmt: skip
                rows_found.append(row)
    return rows_found


def attention(peak: dict[str, Any], kernels: str, instructions: InstructionSet, quick: bool) -> list[dict[str, Any]]:
    """A row for each kind of work, of one layer on one thread, by attention kernels of that name."""
    from benchmarks.kernels.attention_work import WORK
    from benchmarks.kernels.plain_attention import compare_with

    found = []
    for work in WORK:
        repeat = 3 if quick else 9
        seconds = statistics.median(work.run(repeat, kernels))
        gflops, gbs = work.operations / seconds / 1e9, work.cell_bytes / seconds / 1e9
        row = {
            "case": work.title, "ms": 1000 * seconds, "gflops": gflops, "gbs": gbs,
            "ratio_to_ggml": compare_with(work, repeat) / seconds,
            "of_peak": share(gflops, peak["fma"].get(instructions.fma)), "of_memory": share(gbs, peak["memory"]),
        }  # fmt: skip
        found.append(row)
    return found


def steps(cases: Sequence[dict[str, Any]], memory: float) -> list[dict[str, Any]]:
    """What 1,024 tokens of context cost a step more than 16, and what of the cells' bytes a second that is."""
    medians = {
        case["name"]: case["sides"]["tokenloom"]["median"]
        for case in cases
        if case["model"] == "Q4_1" and "median" in case["sides"].get("tokenloom", {})
    }
    found = []
    for sessions in (1, 8, 32, 64):
        long, short = medians.get(f"decode {sessions} x 1024"), medians.get(f"decode {sessions} x 16")
        if long is not None and short is not None and long > short:
            gbs = sessions * (1024 - 16) * CELL_BYTES / (long - short) / 1e6
            title = f"{sessions} independent session{'s' if sessions > 1 else ''}, 1,024 tokens less 16"
            found.append({"case": title, "ms": long - short, "gbs": gbs, "of_memory": gbs / memory})
    return found


def measure(
    threads: int,
    *,
    quick: bool,
    kernels: str = "auto",
    environment: Mapping[str, str] | None = None,
    cases: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Peaks, multiplication, attention, and what a comparison's ``cases`` tell of it; or why it is missing.

    ``kernels`` as TOKENLOOM_KERNELS names them; ``environment`` is that of the program which measures the peaks.
    """
    multiplying, attending, _ = core.kernel_tables(kernels)
    instructions = set_of(multiplying)
    if multiplying == "ggml":
        return {"missing": instructions.why}
    try:
        numbers = sorted({1, threads})
        measured = peaks(numbers, (instructions.products or "none") if quick else "all", environment or {})
        by_threads = {int(row["threads"]): row for row in measured}
        return {
            "kernels": multiplying,
            "peaks": measured,
            "multiply": multiply({threads: by_threads[threads]} if quick else by_threads, multiplying, quick),
            "attention": attention(by_threads[1], attending, instructions, quick),
            "steps": steps(cases, by_threads[threads]["memory"]),
        }
    except (RuntimeError, OSError, subprocess.CalledProcessError, ImportError) as error:
        return {"missing": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Measure, print, write."""
    from benchmarks.comparing.roofline_table import roofline_table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kernels", default=os.environ.get("TOKENLOOM_KERNELS", "auto"), help="the set to measure")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = measure(given.threads, quick=given.quick, kernels=given.kernels)
    print(roofline_table(found))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
