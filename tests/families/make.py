"""Write tests/data/families: ``make truths``, or ``make truths ONLY="gemma2 qwen3"``. Needs ``make bench-llama``.

The truth has float32 cells. Prompts are drawn until with float16 cells llama.cpp itself, and the reference forward,
which does without a table of GELU, stay well within what an engine may be off, and each of the greedy tokens is the
likeliest by more than that could change: no expert is chosen by a hair, and an engine that agrees in the rows can be
asked for the same tokens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from families import llama_cpp
from families.decoder import Decoder
from families.reference import Reference
from families.table import FILES
from families.truths import GREEDY, LENGTHS, Truth, ratio

#: Of a row's range, by which the likeliest token must be ahead of the next: more than twice what each may be off.
AHEAD = 2.5e-3
#: What float16 cells may change, of a row's range; little more than half of what an engine may be off.
STEADY = 6e-4
#: Different ones among the greedy tokens.
DISTINCT = 8
PROMPTS = 400


def prompt_of(seed: int, vocabulary: int) -> list[int]:
    raw = np.random.PCG64(seed).random_raw(LENGTHS[-1])
    return [int(number) for number in raw % np.uint64(vocabulary)]


def ahead(row: npt.NDArray[np.float32]) -> float:
    """How far the likeliest token is ahead, of the row's range."""
    second, first = np.partition(row, -2)[-2:]
    return float((first - second) / np.ptp(row))


def continued(model: llama_cpp.Model, row: npt.NDArray[np.float32]) -> list[int]:
    """The greedy tokens, up to the first that is a close call."""
    tokens: list[int] = []
    for token, logits in model.following(LENGTHS[-1], row):
        if ahead(logits) < AHEAD or len(tokens) == GREEDY:
            break
        tokens.append(token)
    return tokens


def rounded(decoder: Decoder, prompt: list[int]) -> npt.NDArray[np.float32]:
    """Rows of the reference forward with float16 cells."""
    rows = Reference(decoder, np.float16).logits(prompt)
    return rows[[length - 1 for length in LENGTHS]].astype(np.float32)


def changed(rows: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> float:
    """The largest difference, of a row's range."""
    return max(ratio(other, true) for other, true in zip(others, rows, strict=True))


def truth_of(library: Any, decoder: Decoder, path: Path) -> tuple[Truth, str]:
    """And how it was found. RuntimeError when no prompt will do."""
    few = close = shaken = 0
    same = llama_cpp.loaded(library, path, decoder.context, "f16")
    with llama_cpp.loaded(library, path, decoder.context, "f32") as model, same as other:
        for seed in range(PROMPTS):
            prompt = prompt_of(seed, decoder.vocabulary)
            rows = model.rows(prompt, LENGTHS)
            tokens = continued(model, rows[-1])
            if len(tokens) < GREEDY:
                close += 1
            elif len(set(tokens)) < DISTINCT:
                few += 1
            else:
                most = max(changed(rows, other.rows(prompt, LENGTHS)), changed(rows, rounded(decoder, prompt)))
                if most <= STEADY:
                    note = f"prompt {seed}, float16 cells change {most:.1e}"
                    short = np.array(prompt, np.int16), rows, np.array(tokens, np.int16)
                    return Truth(decoder.digest(), *short), note
                shaken += 1
    raise RuntimeError(f"of {PROMPTS} prompts none will do: {close} close calls, {few} monotonous, {shaken} unsteady")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="FILE", help="of families.table; default: all")
    options = parser.parse_args()
    library = llama_cpp.library()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or FILES:
            began = time.perf_counter()
            path = FILES[name].write(Path(folder) / f"{name}.gguf")
            try:
                truth, note = truth_of(library, FILES[name], path)
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: {error}", flush=True)
                continue
            truth.save(name)
            size, reach = path.stat().st_size >> 10, np.ptp(truth.rows[-1])
            path.unlink()
            print(f"{name}: {note}, range {reach:.1f}, {size} kB, {time.perf_counter() - began:.1f} s", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
