"""What is aimed at, on AVX-512 VNNI, and whether the figures reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The sides that are llama.cpp and OpenVINO GenAI in each kind of case.
LLAMA = ("llama.cpp (native)", "llama.cpp (wheel)")
LLAMA_SERVER = ("llama.cpp server (wheel)",)
OPENVINO = ("OpenVINO GenAI",)


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


GOALS = [
    Goal("decode, 1 session, short context", "decode 1 x 16", 2.3, 2.2, most_ms=9.3 / 1.6, source="ik: 9.3 ms / 1.6"),
    Goal("decode, 8 sessions", "decode 8 x 16", 4.5, 2.2, most_ms=25.8, source="ik: 25.8 ms"),
    Goal("decode, 32 sessions", "decode 32 x 16", 6.5, 1.6, most_ms=82, source="ik: 82 ms"),
    Goal("decode, 32 sessions x 1,024 tokens", "decode 32 x 1024", 16, 2),
    Goal("decode, 32 clones of 2,048 tokens", "clones", 25, 4, most_ms=82 / 1.8, source="ik: 82 ms / 1.8"),
    Goal("prefill of 512 tokens", "prefill 512", 9, 1.25, most_ms=512, source="ik: 1,000 tokens/s"),
    Goal("end to end through Redis, 32 sessions, 128 in, 64 out", "end to end", 9, 1.4, llama_sides=LLAMA_SERVER),
    Goal("decode, 32 sessions, AVX2 forced", "decode 32 x 16", 3, None, ours="tokenloom (AVX2)"),
]

#: Share of the measured VNNI peak that the multiplication reaches at 32 tokens and more on two threads, at least.
PEAK_SHARE = 0.8


def judge(report: dict[str, Any], model: str = "Q4_1") -> list[dict[str, Any]]:
    """One row a goal: title, our figure, and a verdict for each thing it is measured against.

    Verdicts are {"against", "figure", "ratio", "goal", "met": True, False or None when nothing was measured, "why"}.
    """
    cases = {case["name"]: case["sides"] for case in report["cases"] if case["model"] == model}
    rows = []
    for goal in GOALS:
        sides = cases.get(goal.case, {})
        ours = sides.get(goal.ours, {"missing": "not measured in this run"})
        verdicts = []
        for names, least in ((goal.llama_sides, goal.llama), (OPENVINO, goal.openvino)):
            if least is None:
                continue
            present = [name for name in names if name in sides] or [names[0]]
            verdicts += [against(name, ours, sides.get(name, {}), least) for name in present]
        if goal.most_ms is not None:
            met = ours["median"] <= goal.most_ms if "median" in ours else None
            verdicts.append({"against": goal.source, "most_ms": goal.most_ms, "met": met})
        rows.append({"title": goal.title, "ours": ours, "unit": unit_of(goal.case), "verdicts": verdicts})
    return rows + peak(report.get("roofline"))


def against(name: str, ours: dict[str, Any], peer: dict[str, Any], least: float) -> dict[str, Any]:
    """How our figure compares with one peer's."""
    if "median" not in ours or "median" not in peer:
        why = peer.get("missing") or ours.get("missing") or "not measured in this run"
        return {"against": name, "goal": least, "met": None, "why": why}
    ratio = peer["median"] / ours["median"]
    return {"against": name, "figure": peer["median"], "ratio": ratio, "goal": least, "met": ratio >= least}


def peak(roofline: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The goal of the multiplication kernels, for the best and the worst of what was measured at 32 tokens and more."""
    title = f"multiplication at 32 tokens and more, 2 threads: {100 * PEAK_SHARE:.0f} % of the VNNI peak"
    shares = [
        row["of_peak"] for row in (roofline or {}).get("multiply", []) if row["tokens"] >= 32 and row["threads"] >= 2
    ]
    if not shares:
        why = (roofline or {}).get("missing", "not measured in this run")
        return [
            {"title": title, "ours": {"missing": why}, "unit": "%", "verdicts": [{"against": "VNNI peak", "met": None}]}
        ]
    best = {
        "against": "VNNI peak",
        "ratio": max(shares),
        "least": min(shares),
        "goal": PEAK_SHARE,
        "met": min(shares) >= PEAK_SHARE,
    }
    return [{"title": title, "ours": {"median": 100 * max(shares)}, "unit": "%", "verdicts": [best]}]


def unit_of(case: str) -> str:
    """Of a case's figures."""
    return "s" if case in ("end to end", "restart") else "ms"
