"""``auto`` beside the sets that can be named, as Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.comparing.markdown import number, quartiles, table


def sets_table(found: dict[str, Any]) -> str:
    """A row for each kind of work."""
    if "missing" in found:
        return f"Missing: {found['missing']}\n"
    names = list(found["rows"][0]["ms"])
    rows = [
        [
            row["work"],
            *(f"{number(row['ms'][name]['median'])} ({quartiles(row['ms'][name])})" for name in names),
            row["best"],
            *(f"{row[of]['median']:.3f} ({quartiles(row[of], 3)})" for of in ("auto_to_best", "cpu_to_best")),
            str(row["auto_to_best"]["count"]),
        ]
        for row in found["rows"]
    ]
    chosen = found["tables"]["auto"]
    return (
        table(["ms (quartiles)", *names, "best named", "auto to it", "CPU, auto to it", "rounds"], rows)
        + f"\n`auto` takes kernels {chosen[0]}, attention {chosen[1]}, rows {chosen[2]}.\n"
    )
