"""How near the kernels come to what the machine can do, measured in the same run.

    python benchmarks/roofline.py [--threads 2] [--quick] [--json FILE]

The peaks are those of peak.cpp, built here with the machine's own compiler: int8 products by the widest instruction,
f32 FMAs, reads from L2 and from memory. A multiplication counts two operations for each weight and token, and all of
the packed weights as read once; its time has the rounding of activations and the threads' meeting in it. The ratio is
to ggml's own op for the same product (`ggml_mul_mat` in a plain buffer).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

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


def peaks(threads: Sequence[int]) -> list[dict[str, float]]:
    """One row for each number of threads. RuntimeError when there is no compiler or it fails."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("no C++ compiler for peak.cpp")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "peak")
        source = str(Path(__file__).with_name("peak.cpp"))
        options = ["-O3", "-std=c++17", "-march=native", "-ffp-contract=fast", "-pthread", "-w"]
        built = subprocess.run([compiler, *options, source, "-o", program], capture_output=True, text=True)
        if built.returncode != 0:
            raise RuntimeError(f"peak.cpp does not build: {built.stderr.strip().splitlines()[-1:]}")
        run = subprocess.run([program, *map(str, threads)], capture_output=True, text=True, check=True)
    found: list[dict[str, float]] = json.loads(run.stdout)
    return found


def multiply(peak: dict[int, dict[str, float]], quick: bool) -> list[dict[str, Any]]:
    """A row for each matrix, number of tokens and number of threads."""
    from benchmarks.kernels.weights import random_weights

    rows_found = []
    for kind, name, rows, columns in MATRICES:
        data = random_weights(kind, rows, columns)
        packed = core.PackedMatrix(kind, data)
        for tokens in QUICK_TOKENS if quick else TOKENS:
            x = np.random.default_rng(tokens).standard_normal((tokens, columns), np.float32)
            for threads, most in peak.items():
                work = 2.0 * rows * columns * tokens
                # Long enough to settle, short enough for everything to be over in half a minute.
                repeat = max(3, min(200, int((2e9 if quick else 8e9) / work)))
                _, ours = core.multiply([packed], x, threads=threads, repeat=repeat)
                _, plain = core.ggml_multiply(kind, data, x, threads=threads, repeat=max(2, repeat // 6))
                seconds = statistics.median(ours)
                row = {
                    "type": kind, "matrix": f"{name}, {rows} x {columns}", "tokens": tokens, "threads": threads,
                    "microseconds": 1e6 * seconds, "gops": work / seconds / 1e9, "gbs": packed.bytes / seconds / 1e9,
                    "ratio_to_ggml": statistics.median(plain) / seconds,
                }  # fmt: skip
                row["of_peak"] = row["gops"] / most["vnni"] if most["vnni"] else float("nan")
                row["of_memory"] = row["gbs"] / most["memory"]
                rows_found.append(row)
    return rows_found


def attention(peak: dict[str, float], quick: bool) -> list[dict[str, Any]]:
    """A row for each kind of work, of one layer on one thread."""
    from benchmarks.kernels.attention_work import WORK
    from benchmarks.kernels.plain_attention import compare_with

    found = []
    for work in WORK:
        repeat = 3 if quick else 9
        seconds = statistics.median(work.run(repeat))
        row: dict[str, Any] = {
            "case": work.title, "ms": 1000 * seconds, "gflops": work.operations / seconds / 1e9,
            "gbs": work.cell_bytes / seconds / 1e9, "ratio_to_ggml": compare_with(work, repeat) / seconds,
        }  # fmt: skip
        row["of_peak"], row["of_memory"] = row["gflops"] / peak["fma"], row["gbs"] / peak["memory"]
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


def measure(threads: int, *, quick: bool, cases: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Peaks, multiplication, attention, and what a comparison's ``cases`` tell of it; or why it is missing."""
    try:
        numbers = sorted({1, threads})
        measured = peaks(numbers)
        by_threads = {int(row["threads"]): row for row in measured}
        return {
            "peaks": measured,
            "multiply": multiply({threads: by_threads[threads]} if quick else by_threads, quick),
            "attention": attention(by_threads[1], quick),
            "steps": steps(cases, by_threads[threads]["memory"]),
        }
    except (RuntimeError, OSError, subprocess.CalledProcessError, ImportError) as error:
        return {"missing": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Measure, print, write."""
    from benchmarks.comparing.tables import roofline

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    found = measure(given.threads, quick=given.quick)
    print(roofline(found))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
