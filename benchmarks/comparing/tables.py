"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.comparing.goals import unit_of

Row = Sequence[str]


#: How sides are placed in tables, after tokenloom's; any others come last.
ORDER = ("llama.cpp (native)", "llama.cpp (wheel)", "llama.cpp server (wheel)", "llama.cpp (native) by hand")


def table(head: Row, rows: Iterable[Row], text: int = 1) -> str:
    """A Markdown table; the first ``text`` columns are text, the others are figures."""
    lines = [head, [*["---"] * text, *["---:"] * (len(head) - text)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def render(report: dict[str, Any]) -> str:
    """Everything that was measured."""
    parts = [about(report), "### Goals\n\n" + goals(report)]
    for model in dict.fromkeys(case["model"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["model"] == model]
        parts.append(f"### {report['models'][model]}\n\n" + comparison(cases))
        parts += [mixed(case) for case in cases if case["name"] == "mixed"]
    parts += settings(report)
    missing = absent(report)
    if missing:
        parts.append("### Missing\n\nNothing is claimed against what was not measured.\n\n" + missing)
    if "roofline" in report:
        parts.append("### Roofline\n\n" + roofline(report["roofline"]))
    return "\n".join(parts)


def about(report: dict[str, Any]) -> str:
    """Machine, versions, effort."""
    machine, versions = report["machine"], report["versions"]
    extent = "quick" if report["quick"] else "full"
    return (
        f"{machine['processor']} ({machine['family']}; {', '.join(machine['flags'])}), {machine['usable_cores']} cores,"
        f" {machine['memory_gb']:g} GB, {machine['system']}. Load before the run {machine['load']:g}, after"
        f" {report['load_after']:g}. {report['threads']} threads on every side; {extent} run"
        f" of {report['seconds']:.0f} s.\n\n"
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.\n"
    )


def goals(report: dict[str, Any]) -> str:
    """Title, our figure, and each verdict."""
    rows = []
    for goal in report["goals"]:
        ours = goal["ours"]
        mine = f"{number(ours['median'])} {goal['unit']}" if "median" in ours else "missing"
        for index, verdict in enumerate(goal["verdicts"]):
            rows.append(
                [goal["title"] if index == 0 else "", mine if index == 0 else "", *judged(verdict, goal["unit"])]
            )
    return table(["goal", "tokenloom", "against", "its figure", "ratio", "aimed at", "verdict"], rows)


def judged(verdict: dict[str, Any], unit: str) -> Row:
    """Against what, its figure, the ratio, the goal, the verdict."""
    met = {True: "met", False: "**not met**", None: "missing"}[verdict["met"]]
    if "most_ms" in verdict:
        return [verdict["against"], "", "", f"<= {number(verdict['most_ms'])} ms", f"{met} (not the same run)"]
    figure = f"{number(verdict['figure'])} {unit}" if "figure" in verdict else ""
    if "least" in verdict:
        return [
            verdict["against"],
            "",
            f"{verdict['least']:.2f}-{verdict['ratio']:.2f}",
            f">= {verdict['goal']:g}",
            met,
        ]
    ratio = f"{verdict['ratio']:.2f}x" if "ratio" in verdict else ""
    return [verdict["against"], figure, ratio, f">= {verdict['goal']:g}x" if "goal" in verdict else "", met]


def comparison(cases: Sequence[dict[str, Any]]) -> str:
    """A row a case: each side's figure, and how often ours goes into it. Engines and servers in tables of their own."""
    found = ""
    for served in (False, True):
        rows_of = [case for case in cases if (case["name"] in ("end to end", "mixed", "restart")) == served]
        names = list(dict.fromkeys(name for case in rows_of for name in case["sides"]))
        names.sort(key=lambda name: (not name.startswith("tokenloom"), name not in ORDER, name))
        rows = []
        for case in rows_of:
            ours = case["sides"].get("tokenloom", {}).get("median")
            rows.append(
                [f"{case['title']}, {unit_of(case['name'])}", *(cell(case["sides"].get(n), ours, n) for n in names)]
            )
        if rows:
            found += table(["", *names], rows) + "\n"
    return found


def cell(figure: dict[str, Any] | None, ours: float | None, name: str) -> str:
    """The figure, and in brackets how many times ours it is."""
    if figure is None:
        return ""
    if "median" not in figure:
        return "missing"
    ratio = f" ({figure['median'] / ours:.2f}x)" if ours and name != "tokenloom" else ""
    return number(figure["median"]) + ratio


def mixed(case: dict[str, Any]) -> str:
    """Times to first token and between tokens."""
    columns = ("first_p50", "first_p99", "between_p50", "between_p99")
    rows = [
        [name, *(number(side[column]) for column in columns), number(side["all_seconds"])]
        for name, side in case["sides"].items()
        if "median" in side
    ]
    head = ["mixed load", "first token p50, ms", "p99", "between tokens p50, ms", "p99", "all done, s"]
    return f"{case['title']}:\n\n" + table(head, rows)


def settings(report: dict[str, Any]) -> list[str]:
    """What the peers' best settings turned out to be."""
    rows = [
        [name, report["models"][case["model"]], case["title"], side["settings"]]
        for case in report["cases"]
        for name, side in case["sides"].items()
        if "settings" in side
    ]
    head = ["side", "model", "case", "settings"]
    what = "### Settings\n\nTried before each case; these were the quickest, and so what was measured.\n\n"
    return [what + table(head, rows, 4)] if rows else []


def absent(report: dict[str, Any]) -> str:
    """Who is missing where, and why."""
    rows = [
        [name, report["models"][case["model"]], case["title"], side["missing"].replace("|", "/")]
        for case in report["cases"]
        for name, side in case["sides"].items()
        if "missing" in side
    ]
    rows += [["everyone", report["models"][left["model"]], left["title"], left["why"]] for left in report["left_out"]]
    return table(["side", "model", "case", "why"], rows, 4) if rows else ""


def roofline(found: dict[str, Any]) -> str:
    """Peaks, then each kernel's share of them."""
    if "missing" in found:
        return f"Missing: {found['missing']}\n"
    peaks = [
        [
            f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}",
            *(number(row[k]) for k in ("vnni", "fma", "l2", "memory")),
        ]
        for row in found["peaks"]
    ]
    multiply = [
        [
            *(str(row[key]) for key in ("type", "matrix", "tokens", "threads")),
            number(row["gops"]),
            number(row["gbs"]),
            f"{100 * row['of_peak']:.0f} %",
            f"{100 * row['of_memory']:.0f} %",
            f"{row['ratio_to_ggml']:.1f}x",
        ]
        for row in found["multiply"]
    ]
    attention = [
        [
            row["case"],
            number(row["ms"]),
            number(row["gflops"]),
            number(row["gbs"]),
            f"{100 * row['of_peak']:.0f} %",
            f"{100 * row['of_memory']:.0f} %",
            f"{row['ratio_to_ggml']:.1f}x",
        ]
        for row in found["attention"]
    ]
    steps = [
        [row["case"], number(row["ms"]), number(row["gbs"]), f"{100 * row['of_memory']:.0f} %"]
        for row in found["steps"]
    ]
    of = ["of memory peak", "to ggml's op"]
    parts = [
        table(["peaks", "VNNI int8, GOPS", "FMA f32, GFLOPS", "L2 read, GB/s", "memory read, GB/s"], peaks),
        table(["weights", "matrix", "tokens", "threads", "GOPS", "GB/s of weights", "of VNNI peak", *of], multiply, 2),
        table(["attention, a layer, 1 thread", "ms", "GFLOPS", "GB/s of cells", "of FMA peak", *of], attention),
    ]
    if steps:
        parts.append(table(["cells, from whole steps", "ms", "GB/s of cells", "of memory peak"], steps))
    return "\n".join(parts)
