"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.comparing.goals import GOALS, unit_of
from benchmarks.comparing.instruction_sets import set_of
from benchmarks.comparing.markdown import Row, missing, number, quartiles, table
from benchmarks.comparing.roofline_table import roofline_table
from benchmarks.comparing.sets_table import sets_table

#: How sides are placed in tables, after tokenloom's; any others come last.
ORDER = ("llama.cpp (native)", "llama.cpp (wheel)", "llama.cpp server (wheel)", "llama.cpp (native) by hand")
SERVED = ("end to end", "mixed", "restart")
#: In the cell of a side that a case does not ask, and what it means.
NOT_ASKED = "-"
LEGEND = f"\n`{NOT_ASKED}`: takes no part in that case; benchmarks/README.md says who does.\n"


def render(report: dict[str, Any]) -> str:
    """Everything that was measured."""
    parts = [about(report), "### Sides\n\n" + sides(report), "### Goals\n\n" + goals(report)]
    for model in dict.fromkeys(case["model"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["model"] == model]
        parts.append(f"### {report['models'][model]}\n\n" + comparison(cases))
        parts += [mixed(case) for case in cases if case["name"] == "mixed"]
    parts += settings(report)
    absentees = absent(report)
    if absentees:
        parts.append("### Missing\n\nNothing is claimed against what was not measured.\n\n" + absentees)
    if "sets" in report:
        parts.append("### Sets of kernels\n\n" + sets_table(report["sets"]))
    if "roofline" in report:
        parts.append("### Roofline\n\n" + roofline_table(report["roofline"]))
    return "\n".join(parts)


def about(report: dict[str, Any]) -> str:
    """Machine, instruction set, versions, effort, and whether the machine was quiet."""
    machine, versions = report["machine"], report["versions"]
    extent = "quick" if report["quick"] else "full"
    kernels = f"Kernels {report['kernels']} ({set_of(report['kernels']).title})"
    kernels += f", attention {report['attention']}, rows {report['rows']}"
    forced = ""
    if report["force"]:
        how = "by CPUID, which hid the rest from every side" if report["hidden"] else "by settings"
        forced = f", forced {how}"
    return (
        f"{machine['processor']} ({machine['family']}; {', '.join(machine['flags'])}), {machine['usable_cores']} cores,"
        f" {machine['memory_gb']:g} GB, huge pages: {machine['huge_pages']}, {machine['system']}. Load before the run"
        f" {machine['load']:g}, after {report['load_after']:g}. {report['threads']} threads on every side; {extent} run"
        f" of {report['seconds']:.0f} s, planned for {60 * report['minutes']:.0f}.\n\n"
        f"{kernels}{forced}.\n\n"
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.\n{disturbed(report)}"
    )


def disturbed(report: dict[str, Any]) -> str:
    """Where tokenloom's engine had to do without a part of its threads."""
    used = [
        f"{case['title']} ({side['threads']:.1f} of {report['threads']})"
        for case in report["cases"]
        if (side := case["sides"].get("tokenloom", {})).get("threads", report["threads"]) < 0.95 * report["threads"]
    ]
    if not used:
        return ""
    return f"\nOther processes took the cores, so that tokenloom left some of its threads out: {', '.join(used)}.\n"


def sides(report: dict[str, Any]) -> str:
    """Each side's version, instructions, threads and notes; of one that did not start, why."""
    columns = ("version", "instructions", "threads", "note")
    rows = [[name, *(str(found.get(key, "")) for key in columns)] for name, found in report["about"].items()]
    rows += [[name, missing(why), "", "", ""] for name, why in report["absent"].items()]
    return table(["side", *columns], rows, 5)


def goals(report: dict[str, Any]) -> str:
    """Title, our figure, and each verdict."""
    rows = []
    for goal in report["goals"]:
        ours = goal["ours"]
        mine = f"{number(ours['median'])} {goal['unit']}" if "median" in ours else missing(ours["missing"])
        for index, verdict in enumerate(goal["verdicts"]):
            rows.append(
                [goal["title"] if index == 0 else "", mine if index == 0 else "", *judged(verdict, goal["unit"])]
            )
    text = table(["goal", "tokenloom", "against", "its figure", "ratio", "quartiles", "aimed at", "verdict"], rows)
    if report["kernels"] not in GOALS:
        text += f"\nNo ratios to peers are aimed at on kernels {report['kernels']}.\n"
    return text


def judged(verdict: dict[str, Any], unit: str) -> Row:
    """Against what, its figure, the ratio, its quartiles, the goal, the verdict."""
    met = {True: "met", False: "**not met**", None: missing(verdict.get("why", ""))}[verdict["met"]]
    if "most_ms" in verdict:
        elsewhere = f"{met} (not the same run)" if verdict["met"] is not None else met
        return [verdict["against"], "", "", "", f"<= {number(verdict['most_ms'])} ms", elsewhere]
    if "least" in verdict:
        extent = f"{verdict['least']:.2f}-{verdict['most']:.2f}"
        return [verdict["against"], "", extent, "", f">= {verdict['goal']:g}", met]
    aim = f">= {verdict['goal']:g}x" if "goal" in verdict else ""
    if "times" in verdict:
        aim = f"<= {verdict['times']:g} times"
    if "ratio" not in verdict:
        return [verdict["against"], "", "", "", aim, met]
    ratio = verdict["ratio"]
    shown = f"{ratio['median']:.2f}" + ("x" if "goal" in verdict else " times")
    met += " (the same kernels)" if verdict.get("same") else ""
    return [verdict["against"], f"{number(verdict['figure'])} {unit}", shown, quartiles(ratio, 2), aim, met]


def comparison(cases: Sequence[dict[str, Any]]) -> str:
    """A row a case: each side's figure, and how often ours goes into it. Engines and servers in tables of their own."""
    found = ""
    for served in (False, True):
        rows_of = [case for case in cases if (case["name"] in SERVED) == served]
        names = list(dict.fromkeys(name for case in rows_of for name in case["sides"]))
        names.sort(key=lambda name: (not name.startswith("tokenloom"), name not in ORDER, name))
        nowhere = {name: why for name in names if (why := never(rows_of, name))}
        names = [name for name in names if name not in nowhere]
        rows = [
            [f"{case['title']}, {unit_of(case['name'])}", *(cell(case, name) for name in names), rounds(case)]
            for case in rows_of
        ]
        if rows:
            found += table(["median (quartiles)", *names, "rounds"], rows)
            found += LEGEND if any(NOT_ASKED in row for row in rows) else ""
            found += "".join(f"\n{name}: {missing(why)}\n" for name, why in nowhere.items()) + "\n"
    return found


def never(cases: Sequence[dict[str, Any]], name: str) -> str:
    """Why a side has no figure at all, where the reason is the same for all of its cases."""
    of = [case["sides"][name] for case in cases if name in case["sides"]]
    reasons = {side.get("missing", "") for side in of}
    return str(reasons.pop()) if len(of) > 1 and len(reasons) == 1 else ""


def rounds(case: dict[str, Any]) -> str:
    """How many all that were measured had."""
    return str(max((side["count"] for side in case["sides"].values() if "median" in side), default=0))


def cell(case: dict[str, Any], name: str) -> str:
    """A side's figure, and in brackets how many times ours it is; of ours, the figure's own quartiles."""
    figure = case["sides"].get(name)
    if figure is None:
        return NOT_ASKED
    if "median" not in figure:
        return missing(figure["missing"])
    ratio = case["ratios"].get("tokenloom", {}).get(name)
    if ratio is None:
        return f"{number(figure['median'])} ({quartiles(figure)})"
    return f"{number(figure['median'])} ({ratio['median']:.2f}x, {quartiles(ratio, 2)})"


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
    what = (
        "### Settings\n\nTried before each case, as many as its time allowed; these were the quickest, and so what was"
        " measured.\n\n"
    )
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
