"""The roofline as Markdown: peaks, then each kernel's share of those of its instruction set."""

from __future__ import annotations

from typing import Any

from benchmarks.comparing.instruction_sets import SETS, InstructionSet, set_of
from benchmarks.comparing.markdown import number, table

FMA_TITLES = {"avx512": "AVX-512 FMA", "avx2": "AVX2 FMA", "plain": "plain FMA"}


def roofline_table(found: dict[str, Any]) -> str:
    """All of it, or why it is missing."""
    if "missing" in found:
        return f"Missing: {found['missing']}\n"
    instructions = set_of(found["kernels"])
    parts = [
        f"Kernels `{found['kernels']}`: {of_what(instructions)}.\n",
        peaks(found["peaks"]),
        multiplication(found["multiply"], instructions),
        attention(found["attention"]),
    ]
    if found["steps"]:
        steps = found["steps"]
        rows = [[row["case"], number(row["ms"]), number(row["gbs"]), of_memory(row["of_memory"])] for row in steps]
        parts.append(table(["cells, from whole steps", "ms", "GB/s of cells", "of memory peak"], rows))
    return "\n".join(parts)


def of_what(instructions: InstructionSet) -> str:
    """Which peak shares are of, in words."""
    if not instructions.products:
        return f"{instructions.title}, of whose products no peak was measured: {instructions.why}"
    return f"{instructions.title}, whose peak is that of {instructions.by}"


def percent(share: float | None) -> str:
    """Of a peak; n/a where none was measured, which the text above says."""
    return "n/a" if share is None else f"{100 * share:.0f} %"


def of_memory(share: float) -> str:
    """Of what memory gives: more than that comes from a cache, and no share says how near that is to its bound."""
    return percent(share) if share <= 1 else "cached"


def peaks(rows: list[dict[str, Any]]) -> str:
    """A row for each number of threads, a column for each peak there is."""
    titles = {entry.products: entry.title for entry in SETS.values() if entry.products}
    products, fmas = list(rows[0]["products"]), list(rows[0]["fma"])
    head = [
        "peaks",
        *(f"{titles.get(name, name)} int8, GOPS" for name in products),
        *(f"{FMA_TITLES.get(name, name)}, GFLOPS" for name in fmas),
        "L2 read, GB/s",
        "memory read, GB/s",
    ]
    return table(
        head,
        [
            [
                f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}",
                *(number(row["products"][name]) for name in products),
                *(number(row["fma"][name]) for name in fmas),
                number(row["l2"]),
                number(row["memory"]),
            ]
            for row in rows
        ],
    )


def multiplication(rows: list[dict[str, Any]], instructions: InstructionSet) -> str:
    """A row for each matrix, number of tokens and of threads."""
    head = ["weights", "matrix", "tokens", "threads", "GOPS", "GB/s of weights"]
    return table(
        [*head, f"of {instructions.title} peak", "of memory peak", "to ggml's op"],
        [
            [
                *(str(row[key]) for key in ("type", "matrix", "tokens", "threads")),
                number(row["gops"]),
                number(row["gbs"]),
                percent(row["of_peak"]),
                of_memory(row["of_memory"]),
                f"{row['ratio_to_ggml']:.1f}x",
            ]
            for row in rows
        ],
        2,
    )


def attention(rows: list[dict[str, Any]]) -> str:
    """A row for each kind of work."""
    head = ["attention, a layer, 1 thread", "ms", "GFLOPS", "GB/s of cells", "of FMA peak", "of memory peak"]
    return table(
        [*head, "to ggml's op"],
        [
            [
                row["case"],
                number(row["ms"]),
                number(row["gflops"]),
                number(row["gbs"]),
                percent(row["of_peak"]),
                of_memory(row["of_memory"]),
                f"{row['ratio_to_ggml']:.1f}x",
            ]
            for row in rows
        ],
    )
