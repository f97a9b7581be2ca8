"""What is aimed at on each instruction set, and whether the figures reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.comparing.instruction_sets import set_of

#: The sides that are llama.cpp and OpenVINO GenAI in each kind of case.
LLAMA = ("llama.cpp (native)", "llama.cpp (wheel)")
LLAMA_SERVER = ("llama.cpp server (wheel)",)
OPENVINO = ("OpenVINO GenAI",)
NOT_MEASURED = "not measured in this run"


@dataclass(frozen=True)
class Goal:
    """Least ratios to the peers, and the most milliseconds, from ik_llama.cpp's figures on another such machine."""

    title: str
    case: str
    llama: float | None
    openvino: float | None
    ours: str = "tokenloom"
    llama_sides: tuple[str, ...] = LLAMA
    most_ms: float | None = None
    source: str = ""


ONE, EIGHT, MANY = "decode, 1 session, short context", "decode, 8 sessions", "decode, 32 sessions"
LONG, CLONES = "decode, 32 sessions x 1,024 tokens", "decode, 32 clones of 2,048 tokens"
PROMPT, SERVED = "prefill of 512 tokens", "end to end through Redis, 32 sessions, 128 in, 64 out"

#: By the kernels that tokenloom runs on. No machine with AVX-VNNI alone was at hand: what AVX2 reaches is its least.
GOALS = {
    "vnni": [
        Goal(ONE, "decode 1 x 16", 2.3, 2.2, most_ms=9.3 / 1.6, source="ik: 9.3 ms / 1.6"),
        Goal(EIGHT, "decode 8 x 16", 4.5, 2.2, most_ms=25.8, source="ik: 25.8 ms"),
        Goal(MANY, "decode 32 x 16", 6.5, 1.6, most_ms=82, source="ik: 82 ms"),
        Goal(LONG, "decode 32 x 1024", 16, 2),
        Goal(CLONES, "clones", 25, 4, most_ms=82 / 1.8, source="ik: 82 ms / 1.8"),
        Goal(PROMPT, "prefill 512", 9, 1.25, most_ms=512, source="ik: 1,000 tokens/s"),
        Goal(SERVED, "end to end", 9, 1.4, llama_sides=LLAMA_SERVER),
        Goal("decode, 32 sessions, AVX2 forced", "decode 32 x 16", 3, None, ours="tokenloom (AVX2)"),
    ],
    "avx2": [
        Goal(ONE, "decode 1 x 16", 1.8, None),
        Goal(EIGHT, "decode 8 x 16", 4, None),
        Goal(MANY, "decode 32 x 16", 3.5, None),
        Goal(CLONES, "clones", None, 4),
        Goal(PROMPT, "prefill 512", 4, None),
    ],
}
GOALS["avxvnni"] = GOALS["avx2"]

#: Share of their set's measured peak that multiplications reach at 32 tokens and more on two threads, at least. In AVX2
#: each product of 8-bit weights is widened by itself: twice the instructions that its peak is measured with.
PEAK_SHARES = {"vnni": 0.8, "avxvnni": 0.8, "avx2": 0.5}

#: ``auto`` takes at most so many times as long as the best set that can be named.
AUTO = 1.03


def judge(report: dict[str, Any], model: str = "Q4_1") -> list[dict[str, Any]]:
    """One row a goal: title, our figure, and a verdict for each thing it is measured against.

    Verdicts are {"against", "figure", "ratio" (a Spread), "goal", "met": True, False or None when nothing was measured,
    "why"}. Goals are those of ``report["kernels"]``; of kernels that have none, what any machine has to reach is left.
    """
    cases = {case["name"]: case for case in report["cases"] if case["model"] == model}
    left_out = {case["name"]: case["why"] for case in report.get("left_out", []) if case["model"] == model}
    rows = []
    for goal in GOALS.get(report["kernels"], []):
        absent = {"missing": left_out.get(goal.case, NOT_MEASURED)}
        case = cases.get(goal.case, {"sides": {}, "ratios": {}})
        sides = case["sides"]
        ours = sides.get(goal.ours, absent)
        verdicts = []
        for names, least in ((goal.llama_sides, goal.llama), (OPENVINO, goal.openvino)):
            if least is None:
                continue
            present = [name for name in names if name in sides] or [names[0]]
            verdicts += [against(name, goal.ours, ours, case, least, absent["missing"]) for name in present]
        if goal.most_ms is not None:
            verdict: dict[str, Any] = {"against": goal.source, "most_ms": goal.most_ms, "met": None}
            if "median" in ours:
                verdict["met"] = ours["median"] <= goal.most_ms
            else:
                verdict["why"] = ours["missing"]
            verdicts.append(verdict)
        rows.append({"title": goal.title, "ours": ours, "unit": unit_of(goal.case), "verdicts": verdicts})
    return rows + peak(report.get("roofline"), report["kernels"]) + automatic(report.get("sets"))


def against(
    name: str, mine: str, ours: dict[str, Any], case: dict[str, Any], least: float, otherwise: str
) -> dict[str, Any]:
    """How our side's figure compares with one peer's."""
    peer = case["sides"].get(name, {"missing": otherwise})
    if "median" not in ours or "median" not in peer:
        return {"against": name, "goal": least, "met": None, "why": peer.get("missing") or ours["missing"]}
    ratio = case["ratios"][mine][name]
    met = ratio["median"] >= least
    return {"against": name, "figure": peer["median"], "ratio": ratio, "goal": least, "met": met}


def peak(roofline: dict[str, Any] | None, kernels: str) -> list[dict[str, Any]]:
    """The goal of the multiplication kernels, for the best and the worst of what was measured at 32 tokens and more."""
    if kernels not in PEAK_SHARES:
        return []
    goal, against = PEAK_SHARES[kernels], f"{set_of(kernels).title} peak"
    row: dict[str, Any] = {
        "title": f"multiplication at 32 tokens and more, 2 threads: {100 * goal:.0f} % of the {against}",
        "unit": "%",
    }
    found = roofline or {"missing": NOT_MEASURED}
    rows = [r for r in found.get("multiply", []) if r["tokens"] >= 32 and r["threads"] >= 2]
    shares = [r["of_peak"] for r in rows if r["of_peak"] is not None]
    if not shares:
        why = found.get("missing") or ("on one thread only" if not rows else "its peak was not measured")
        return [{**row, "ours": {"missing": why}, "verdicts": [{"against": against, "met": None, "why": why}]}]
    best, least = max(shares), min(shares)
    verdict = {"against": against, "least": least, "most": best, "goal": goal, "met": least >= goal}
    return [{**row, "ours": {"median": 100 * best}, "verdicts": [verdict]}]


def automatic(sets: dict[str, Any] | None) -> list[dict[str, Any]]:
    """That ``auto`` is as fast as the best set of kernels that can be named, in each kind of work.

    Where ``auto`` has chosen that set, no noise says otherwise.
    """
    row: dict[str, Any] = {"title": "`auto` as fast as the best set that can be named", "unit": "ms"}
    if sets is None or "missing" in sets:
        why = (sets or {"missing": NOT_MEASURED})["missing"]
        return [{**row, "ours": {"missing": why}, "verdicts": [{"against": "named sets", "met": None, "why": why}]}]
    rows = []
    for found in sets["rows"]:
        best, ratio = found["best"], found["auto_to_best"]
        same = sets["tables"]["auto"] == sets["tables"][best]
        verdict = {
            "against": f"`{best}`", "figure": found["ms"][best]["median"], "ratio": ratio, "times": AUTO, "same": same,
            "met": same or ratio["median"] <= AUTO,
        }  # fmt: skip
        title = f"{row['title']}: {found['work']}"
        rows.append({**row, "title": title, "ours": found["ms"]["auto"], "verdicts": [verdict]})
    return rows


def unit_of(case: str) -> str:
    """Of a case's figures."""
    return "s" if case in ("end to end", "restart") else "ms"
