"""Which cases are run on which model files, and the report that comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import roofline, sets
from benchmarks.comparing import spread
from benchmarks.comparing.budget import Budget, Share
from benchmarks.comparing.cases import (
    CLONES,
    END_TO_END,
    LONG,
    MIXED,
    OURS,
    PREFILL_512,
    PREFILL_4096,
    RESTART,
    SHORT,
    TREE,
    AnyCase,
    Effort,
    EndToEnd,
    independent,
)
from benchmarks.comparing.entrants import SLOTS, Sides, builds
from benchmarks.comparing.field import OVER, Field
from benchmarks.comparing.forcing import BUILT_BEYOND, hidden, is_beyond
from benchmarks.comparing.goals import judge
from benchmarks.comparing.machine import machine, versions
from benchmarks.models.make import FILES, FOLDER
from benchmarks.sides.llama_library import NATIVE
from tokenloom.native_ext.native import core

TITLES = {
    "Q4_1": "SmolLM2-135M in Q4_1",
    "Q8_0": "SmolLM2-135M in Q8_0",
    "Q4_K_M": "SmolLM2-135M in Q4_K_M",
    "1.2B": "1.2 billion random parameters in Q4_K_M",
}
#: As cases have: what goes after them.
SETS_WEIGHT, ROOFLINE_WEIGHT = 15.0, 30.0
#: No question waits for longer than so many times the minutes of the run, from its beginning.
END = 1.35
Say = Callable[[str], None]
#: A model file, whether all builds of llama.cpp take part, whether servers do, the cases.
Stage = tuple[str, bool, bool, list[AnyCase]]


@dataclass(frozen=True)
class Plan:
    """What was asked for on the command line. ``force``: avx2, for all sides that allow it, or nothing."""

    quick: bool
    smoke: bool
    threads: int
    models: Sequence[str] | None
    cases: Sequence[str] | None
    llama: str | None
    minutes: float
    force: str | None = None

    @property
    def effort(self) -> Effort:
        """Of a decode case."""
        if self.smoke:
            return Effort(steps=2, seconds=0.1)
        return Effort(steps=10, seconds=0.6 if self.quick else 1.0)

    @property
    def most_rounds(self) -> int:
        """Of any case, however much time is left."""
        return 1 if self.smoke else 5 if self.quick else 7

    def stages(self) -> list[Stage]:
        """The goals' first."""
        found: list[Stage] = [
            ("Q4_1", True, False, [*SHORT, PREFILL_512, CLONES, LONG]),
            ("Q4_1", False, True, [END_TO_END] if self.quick else [END_TO_END, MIXED, RESTART]),
        ]
        if not self.quick:
            found += [(model, False, False, [*SHORT, PREFILL_512]) for model in ("Q8_0", "Q4_K_M", "1.2B")]
            more = [TREE, independent(64, 16, 20), independent(1, 1024, 5), independent(8, 1024, 12)]
            found.append(("Q4_1", False, False, [*more, PREFILL_4096, independent(64, 1024, 60)]))
        wanted = [
            (model, goals, served, [case for case in cases if self.wants(case.name)])
            for model, goals, served, cases in found
            if self.models is None or model in self.models
        ]
        return [stage for stage in wanted if stage[3]]

    def wants(self, name: str) -> bool:
        """Whether a case of that name was asked for."""
        return self.cases is None or any(part in name for part in self.cases)

    def sides(self, flags: Sequence[str]) -> Sides:
        """Of a machine of these flags."""
        kernels = self.force or "auto"
        if self.force is None or not is_beyond(flags):
            return Sides(self.threads, builds(self.llama, quick=self.quick, native=NATIVE.exists()), kernels)
        environment, why = {}, ""
        try:
            environment = hidden(FOLDER)
        except RuntimeError as error:
            why = f"it goes by CPUID, which cannot be made to hide what is beyond AVX2: {error}"
        asked = builds(self.llama, quick=self.quick, native=False)
        return Sides(self.threads, asked, kernels, environment, BUILT_BEYOND, why)


def quicker_server(sides: Sides, model: str, budget: Budget, say: Say) -> bool:
    """Whether llama.cpp's server is quicker with unified cells, by a short run of each."""
    seconds = {}
    for unified in (True, False):
        with Field({"server": sides.servers(model, unified)["llama.cpp server (wheel)"]}, budget) as alone:
            if alone.absent:
                return True
            probe = EndToEnd("probe", "probe", 0, SLOTS, 16, 4)
            figure = probe.run(alone, Effort(1, 1), Share(0.0, 1))["server"]
            seconds[unified] = figure.get("median", float("inf"))
    say(f"llama.cpp's server: {seconds[True]:.2f} s with unified cells, {seconds[False]:.2f} s with split ones")
    return bool(seconds[True] <= seconds[False])


class Comparison:
    """One run, and its report as it grows."""

    def __init__(self, plan: Plan, say: Say) -> None:
        """Raises EngineError when the set that is asked for is not to be had here."""
        self.plan, self.say = plan, say
        self.budget = Budget(60 * plan.minutes, END)
        self.stages = plan.stages()
        found = machine()
        self.sides = plan.sides(found["flags"])
        kernels, attention, rows = core.kernel_tables(self.sides.kernels)
        self.report: dict[str, Any] = {
            "machine": found, "versions": versions(), "quick": plan.quick, "threads": plan.threads,
            "minutes": plan.minutes, "force": plan.force, "hidden": bool(self.sides.environment),
            "kernels": kernels, "attention": attention, "rows": rows, "models": {m: TITLES[m] for m, *_ in self.stages},
            "about": {}, "absent": {}, "cases": [], "left_out": [],
        }  # fmt: skip
        say(f"{found['processor']}, {plan.threads} threads, kernels {kernels}, load {found['load']}")

    def run(self) -> dict[str, Any]:
        """All of it."""
        left = [case.weight for *_, cases in self.stages for case in cases]
        left += [weight for name, weight in AFTERWARDS if self.plan.wants(name)]
        for model, goals, served, cases in self.stages:
            self._stage(model, goals, served, cases, left)
        if self.plan.wants("sets"):
            self.report["sets"] = self._sets(left)
        if self.plan.wants("roofline"):
            self.report["roofline"] = self._roofline()
        self.report["goals"] = judge(self.report)
        self.report["seconds"] = self.budget.spent
        self.report["load_after"] = round(os.getloadavg()[0], 2)
        return self.report

    def _share(self, left: list[float]) -> Share:
        return self.budget.share(left.pop(0), sum(left), self.plan.most_rounds)

    def _leave_out(self, model: str, cases: Sequence[AnyCase], why: str) -> None:
        self.say(f"{TITLES[model]}: left out, {why}: {', '.join(case.name for case in cases)}")
        self.report["left_out"] += [{"model": model, "name": c.name, "title": c.title, "why": why} for c in cases]

    def _why_not(self, model: str) -> str:
        if not FILES[model].exists():
            return "no model file: make bench-setup"
        return OVER if self.budget.over else ""

    def _stage(self, model: str, goals: bool, served: bool, cases: list[AnyCase], left: list[float]) -> None:
        why = self._why_not(model)
        if why:
            self._leave_out(model, cases, why)
            del left[: len(cases)]
            return
        if served:
            unified = self.plan.smoke or quicker_server(self.sides, model, self.budget, self.say)
            entrants = self.sides.servers(model, unified)
        else:
            entrants = self.sides.engines(model, goals)
        with Field(entrants, self.budget) as ring:
            self.report["absent"].update(ring.absent)
            for name, absent in ring.absent.items():
                self.say(f"{TITLES[model]}: {name} is MISSING: {absent}")
            kind = "servers" if served else "engines"
            for name, about in ring.about.items():
                self.report["about"].setdefault(f"{name}, {kind}" if name == OURS else name, about)
            for case in cases:
                share = self._share(left)
                if self.budget.over:
                    self._leave_out(model, [case], OVER)
                    continue
                found = case.run(ring, self.plan.effort, share)
                self.report["cases"].append(
                    {"model": model, "name": case.name, "title": case.title, "sides": found, "ratios": ratios(found)}
                )
                self.say(f"{TITLES[model]}: {case.title}: {line(found)}")

    def _sets(self, left: list[float]) -> dict[str, Any]:
        seconds = self._share(left).seconds
        if self.budget.over:
            return {"missing": OVER}
        if self.sides.no_openvino:
            return {"missing": "`auto` would not be kept to AVX2, for CPUID cannot be hidden here"}
        found = sets.measure(self.plan.threads, 1.0 if self.plan.smoke else seconds, self.sides.environment)
        self.say(f"auto and named sets: {found.get('missing', 'measured')}")
        return found

    def _roofline(self) -> dict[str, Any]:
        if self.budget.over:
            return {"missing": OVER}
        return roofline.measure(
            self.plan.threads, quick=self.plan.quick or self.plan.smoke, kernels=self.report["kernels"],
            environment=self.sides.environment, cases=self.report["cases"],
        )  # fmt: skip


AFTERWARDS = (("sets", SETS_WEIGHT), ("roofline", ROOFLINE_WEIGHT))


def ratios(sides: dict[str, dict[str, Any]]) -> dict[str, dict[str, spread.Spread]]:
    """Of each side's rounds by those of each of ours: above 1, ours is quicker."""
    rounds = {name: side["rounds"] for name, side in sides.items() if "median" in side}
    return {
        ours: {name: spread.ratios(theirs, rounds[ours]) for name, theirs in rounds.items() if name != ours}
        for ours in rounds
        if ours.startswith(OURS)
    }


def line(sides: dict[str, dict[str, Any]]) -> str:
    """All figures of a case in a line."""
    return ", ".join(
        f"{name} {side['median']:.4g} x{side['count']}" if "median" in side else f"{name} MISSING: {side['missing']}"
        for name, side in sides.items()
    )
