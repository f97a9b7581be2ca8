"""Which cases are run on which model files, by whom, and the report that comes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import roofline
from benchmarks.comparing.cases import (
    CLONES,
    END_TO_END,
    FORCED,
    MIXED,
    PREFILL_512,
    PREFILL_4096,
    RESTART,
    SHORT,
    TREE,
    AnyCase,
    Effort,
    independent,
)
from benchmarks.comparing.field import Entrant, Field
from benchmarks.comparing.goals import judge
from benchmarks.comparing.machine import machine, versions
from benchmarks.models.make import FILES
from benchmarks.sides.llama_library import NATIVE

TITLES = {
    "Q4_1": "SmolLM2-135M in Q4_1",
    "Q8_0": "SmolLM2-135M in Q8_0",
    "Q4_K_M": "SmolLM2-135M in Q4_K_M",
    "1.2B": "1.2 billion random parameters in Q4_K_M",
}
#: Prompts of servers and how much longer a slot of llama.cpp's server is than prompt and answer.
SLOTS, SPARE = 32, 32
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line."""

    quick: bool
    smoke: bool
    threads: int
    models: Sequence[str] | None
    cases: Sequence[str] | None
    llama: str
    minutes: float

    @property
    def effort(self) -> Effort:
        """Of a decode case; servers get fewer rounds."""
        if self.smoke:
            return Effort(rounds=1, steps=2, seconds=0.1, tuning=1)
        return Effort(rounds=3, steps=10, seconds=1.0, tuning=20 if self.quick else 30)

    def stages(self) -> list[tuple[str, str, list[AnyCase]]]:
        """(model, who, cases), the goals' first, so that a run short of time has them.

        Who: ``engines``, llama.cpp in both builds; ``rest``, engines, llama.cpp in its native build alone; ``servers``.
        """
        stages: list[tuple[str, str, list[AnyCase]]] = [
            ("Q4_1", "engines", [*SHORT, PREFILL_512, CLONES, independent(32, 1024)]),
            ("Q4_1", "servers", [END_TO_END] if self.quick else [END_TO_END, MIXED, RESTART]),
        ]
        if not self.quick:
            stages += [(model, "rest", [*SHORT, PREFILL_512]) for model in ("Q8_0", "Q4_K_M", "1.2B")]
            stages.append(("Q4_1", "rest", [TREE, independent(64, 16), independent(1, 1024), independent(8, 1024)]))
            stages.append(("Q4_1", "rest", [PREFILL_4096, independent(64, 1024)]))
        wanted = [(model, who, [case for case in cases if self.wants(case.name)]) for model, who, cases in stages]
        return [stage for stage in wanted if stage[2] and (self.models is None or stage[0] in self.models)]

    def wants(self, name: str) -> bool:
        """Whether a case of that name was asked for."""
        return self.cases is None or any(part in name for part in self.cases)


def builds(plan: Plan, who: str) -> tuple[str, ...]:
    """Of llama.cpp. A native one that is not there is left out of the rest, and named as missing once."""
    if plan.llama == "both" and who == "engines":
        return ("native", "wheel")
    return ("wheel",) if plan.llama == "wheel" or not NATIVE.exists() else ("native",)


def engines(plan: Plan, model: str, who: str) -> dict[str, Entrant]:
    """Engines alone, each in its process."""
    common = {"model": str(FILES[model]), "threads": plan.threads}
    ours = {**common, "kv_bytes": 4 << 30}
    found = {"tokenloom": Entrant("engine_ours", ours)}
    if who == "engines":
        found[FORCED] = Entrant("engine_ours", ours, {"TOKENLOOM_KERNELS": "avx2"})
    for build in builds(plan, who):
        llama = {**common, "build": build, "repack": True}
        found[f"llama.cpp ({build})"] = Entrant("engine_llama", llama, otherwise={"repack": False})
    found["OpenVINO GenAI"] = Entrant("engine_openvino", {**common, "cache_gb": 4, "batch": 4096})
    return found


def servers(plan: Plan, model: str, unified: bool) -> dict[str, Entrant]:
    """What takes requests while others run; and llama.cpp's engine in a loop: its native build has no server."""
    common = {"model": str(FILES[model]), "threads": plan.threads}
    longest = MIXED.prompt + MIXED.answer + SPARE
    served = {**common, "slots": SLOTS, "context": longest, "unified": unified, "repack": True}
    found = {
        "tokenloom": Entrant("redis_ours", {**common, "kv_bytes": 2 << 30}),
        "llama.cpp server (wheel)": Entrant("server_llama", served, otherwise={"repack": False}),
        "OpenVINO GenAI": Entrant("engine_openvino", {**common, "cache_gb": 4, "batch": 512}),
    }
    if "native" in builds(plan, "servers"):
        llama = {**common, "build": "native", "repack": True}
        found["llama.cpp (native) by hand"] = Entrant("engine_llama", llama, otherwise={"repack": False})
    return found


def quicker_server(plan: Plan, model: str, say: Say) -> bool:
    """Whether llama.cpp's server is quicker with unified cells, by a short run of each."""
    seconds = {}
    for unified in (True, False):
        entrant = servers(plan, model, unified)["llama.cpp server (wheel)"]
        with Field({"server": entrant}) as alone:
            if alone.absent:
                return True
            probe = END_TO_END.__class__("probe", "probe", SLOTS, 16, 4)
            figure = probe.run(alone, Effort(1, 1, 1, 1))["server"]
            seconds[unified] = figure.get("median", float("inf"))
    say(f"llama.cpp's server: {seconds[True]:.2f} s with unified cells, {seconds[False]:.2f} s with split ones")
    return bool(seconds[True] <= seconds[False])


def compare(plan: Plan, say: Say) -> dict[str, Any]:
    """Run all of it."""
    began = time.monotonic()
    stages = plan.stages()
    report: dict[str, Any] = {
        "machine": machine(), "versions": versions(), "quick": plan.quick, "threads": plan.threads,
        "models": {model: TITLES[model] for model, _, _ in stages}, "about": {}, "cases": [], "left_out": [],
    }  # fmt: skip
    say(f"{report['machine']['processor']}, {plan.threads} threads, load {report['machine']['load']}")

    def leave_out(model: str, cases: Sequence[AnyCase], why: str) -> None:
        say(f"{TITLES[model]}: left out, {why}: {', '.join(case.name for case in cases)}")
        report["left_out"] += [{"model": model, "name": c.name, "title": c.title, "why": why} for c in cases]

    for model, who, cases in stages:
        if not FILES[model].exists():
            leave_out(model, cases, "no model file: make bench-setup")
            continue
        if time.monotonic() - began > 60 * plan.minutes:
            leave_out(model, cases, f"the run was {plan.minutes:g} minutes old")
            continue
        effort, entrants = plan.effort, engines(plan, model, who)
        if who == "servers":
            effort = Effort(1 if plan.smoke else 2, 1, 1, 1)
            entrants = servers(plan, model, True if plan.smoke else quicker_server(plan, model, say))
        with Field(entrants) as ring:
            for name, why in ring.absent.items():
                say(f"{TITLES[model]}: {name} is MISSING: {why}")
            report["about"].setdefault(model, {}).update(ring.about)
            for index, case in enumerate(cases):
                if time.monotonic() - began > 60 * plan.minutes:
                    leave_out(model, cases[index:], f"the run was {plan.minutes:g} minutes old")
                    break
                sides = case.run(ring, effort)
                found = {
                    "model": model,
                    "name": case.name,
                    "title": case.title,
                    "sides": sides,
                    "ratios": ratios(sides),
                }
                report["cases"].append(found)
                say(f"{TITLES[model]}: {case.title}: {line(sides)}")
    if plan.wants("roofline"):
        report["roofline"] = roofline.measure(plan.threads, quick=plan.quick or plan.smoke, cases=report["cases"])
    report["goals"] = judge(report)
    report["seconds"] = time.monotonic() - began
    report["load_after"] = round(os.getloadavg()[0], 2)
    return report


def ratios(sides: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Every other side's figure by tokenloom's: above 1, tokenloom is quicker."""
    ours = sides.get("tokenloom", {}).get("median")
    return {
        name: side["median"] / ours for name, side in sides.items() if name != "tokenloom" and ours and "median" in side
    }


def line(sides: dict[str, dict[str, Any]]) -> str:
    """All figures of a case in a line."""
    return ", ".join(
        f"{name} {side['median']:.4g}" if "median" in side else f"{name} MISSING" for name, side in sides.items()
    )
