"""What a comparison says of its figures: goals by instruction set, and a reason for each figure that is not there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from benchmarks.comparing.entrants import Sides, builds
from benchmarks.comparing.field import Field
from benchmarks.comparing.forcing import is_beyond
from benchmarks.comparing.goals import AUTO, GOALS, judge
from benchmarks.comparing.instruction_sets import SETS, set_of
from benchmarks.comparing.plan import Plan, ratios
from benchmarks.comparing.roofline_table import roofline_table
from benchmarks.comparing.spread import spread
from benchmarks.comparing.tables import comparison, goals, render
from benchmarks.roofline import repeats, typical
from benchmarks.sets import compared

from tokenloom.native_ext.native import core

#: A figure's place, and no word of why it is empty.
BARE = re.compile(r"missing(?!: \S)")


def side(*rounds: float, **notes: Any) -> dict[str, Any]:
    return {**spread(rounds), "rounds": list(rounds), **notes}


def case(name: str, **sides: dict[str, Any]) -> dict[str, Any]:
    named = {key.replace("_", " "): found for key, found in sides.items()}
    return {"model": "Q4_1", "name": name, "title": f"title of {name}", "sides": named, "ratios": ratios(named)}


def multiplied(of_peak: float | None, tokens: int = 32, threads: int = 2) -> dict[str, Any]:
    return {
        "type": "Q8_0", "matrix": "a, 3 x 4", "tokens": tokens, "threads": threads, "gops": 100.0, "gbs": 5.0,
        "of_peak": of_peak, "of_memory": 1.5, "ratio_to_ggml": 2.0,
    }  # fmt: skip


def roofline(kernels: str, *shares: float | None) -> dict[str, Any]:
    peaks = {
        "threads": 2,
        "products": {"avx512_vnni": 900.0, "avx2": 600.0},
        "fma": {"avx2": 200.0},
        "l2": 99,
        "memory": 30,
    }
    return {
        "kernels": kernels, "peaks": [peaks], "multiply": [multiplied(share) for share in shares], "attention": [],
        "steps": [],
    }  # fmt: skip


def report(kernels: str, *cases: dict[str, Any], **others: Any) -> dict[str, Any]:
    made = {
        "kernels": kernels, "attention": "avx2", "rows": "avx2", "force": None, "hidden": False, "quick": True,
        "threads": 2, "minutes": 4.0, "seconds": 200.0, "load_after": 0.5, "models": {"Q4_1": "a model"},
        "about": {}, "absent": {},
        "machine": {
            "processor": "a CPU", "family": "family 1", "flags": ["avx2"], "usable_cores": 2, "memory_gb": 8.0,
            "huge_pages": "madvise", "system": "Linux", "load": 0.1,
        },
        "versions": {"tokenloom": "1"}, "cases": list(cases), "left_out": [], **others,
    }  # fmt: skip
    return {**made, "goals": judge(made)}


def rows_of(text: str, beginning: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {beginning}")]


def test_ratios_are_of_rounds_and_to_each_of_ours() -> None:
    sides = {
        "tokenloom": side(10, 20, 10), "tokenloom (AVX2)": side(20, 40, 20), "peer": side(30, 60, 40),
        "gone": {"missing": "it died"},
    }  # fmt: skip
    found = ratios(sides)
    assert found["tokenloom"]["peer"] == {"median": 3.0, "q1": 3.0, "q3": 3.5, "count": 3}
    assert found["tokenloom"]["tokenloom (AVX2)"]["median"] == 2.0
    assert found["tokenloom (AVX2)"]["peer"]["median"] == 1.5
    assert "gone" not in found["tokenloom"]


def test_goals_and_peaks_are_those_of_the_set_in_use() -> None:
    peers = {"llama.cpp (wheel)": side(25.0), "OpenVINO GenAI": side(30.0)}
    decode = case("decode 1 x 16", tokenloom=side(10.0), **peers)
    for kernels, least, met in (("vnni", 2.3, True), ("avx2", 1.8, True), ("avxvnni", 1.8, True)):
        made = report(kernels, decode, roofline=roofline(kernels, 0.6, 0.7))
        by_title = {goal["title"]: goal["verdicts"] for goal in made["goals"]}
        first = by_title["decode, 1 session, short context"][0]
        assert (first["against"], first["goal"], first["met"]) == ("llama.cpp (wheel)", least, met)
        [title] = [title for title in by_title if title.startswith("multiplication")]
        assert f"{SETS[kernels].title} peak" in title
        [verdict] = by_title[title]
        assert (verdict["least"], verdict["most"], verdict["met"]) == (0.6, 0.7, kernels == "avx2")


def test_no_goal_and_no_share_of_a_peak_speaks_of_vnni_where_it_is_not_used() -> None:
    for kernels in ("avx2", "portable", "ggml", "neon"):
        assert "VNNI" not in goals(report(kernels, roofline={"missing": "no compiler"}))
    text = roofline_table(roofline("avx2", 0.5))
    assert "of AVX2 peak" in text
    assert "of AVX-512 VNNI peak" not in text


def test_a_set_without_goals_says_so() -> None:
    assert "No ratios to peers are aimed at on kernels portable." in goals(report("portable"))
    assert set(GOALS) <= set(SETS)


def test_kernels_without_a_peak_have_no_share_and_a_reason() -> None:
    text = roofline_table({**roofline("portable", None), "kernels": "portable"})
    [row] = rows_of(text, "Q8_0")
    assert "| n/a | cached | 2.0x |" in row
    assert SETS["portable"].why in text
    assert "a new set" in set_of("a new set").why


def test_every_missing_figure_says_why() -> None:
    """Whatever is missing: a side at the start, one in mid-run, a case, a peak, all of it."""
    lost = {"missing": "RuntimeError: no | room"}
    made = report(
        "vnni",
        case("decode 1 x 16", tokenloom=lost, **{"llama.cpp (wheel)": side(3.0)}),
        case("decode 8 x 16", tokenloom=side(1.0), **{"llama.cpp (wheel)": lost, "OpenVINO GenAI": side(2.0)}),
        absent={"OpenVINO GenAI": "it is not installed"},
        left_out=[{"model": "Q4_1", "name": "end to end", "title": "title", "why": "the run was over"}],
        roofline={"missing": "no C++ compiler for peak.cpp"},
        sets={"missing": "it died"},
    )
    text = render(made)
    assert not BARE.search(text)
    [served] = rows_of(text, "end to end through Redis")
    assert served.count("missing: the run was over") == 2
    [one] = rows_of(text, "decode, 1 session")
    assert one.count("missing: RuntimeError: no / room") == 2
    assert (
        "| title of decode 8 x 16, ms | 1.00 (1 round) | missing: RuntimeError: no / room | 2.00 (2.00x, 1 round) |"
        in text
    )
    assert "missing: no C++ compiler for peak.cpp" in text
    assert "| OpenVINO GenAI | missing: it is not installed |" in text
    assert not BARE.search(render(report("avx2")))
    for goal in made["goals"]:
        assert all(verdict["met"] is not None or verdict["why"] for verdict in goal["verdicts"])


def test_a_long_reason_is_cut_in_a_cell_and_whole_in_the_list() -> None:
    why = "because " * 40
    text = render(report("avx2", case("decode 8 x 16", tokenloom=side(1.0), peer={"missing": why})))
    assert "missing: because because" in text
    assert why.strip() in text
    assert all(len(line) < 300 for line in rows_of(text, "title of"))


def test_a_side_that_is_missing_for_one_reason_everywhere_has_no_column() -> None:
    gone = {"missing": "left out: built with AVX512"}
    text = comparison([case(name, tokenloom=side(1.0), native=gone) for name in ("decode 1 x 16", "decode 8 x 16")])
    assert "| median (quartiles) | tokenloom | rounds |" in text
    assert text.count("native: missing: left out: built with AVX512") == 1


def test_figures_have_their_quartiles_and_the_number_of_rounds() -> None:
    text = comparison(
        [
            case("decode 8 x 16", tokenloom=side(1.0, 2.0, 3.0), peer=side(4.0, 9.0, 15.0), other=side(1, 1, 1)),
            case("clones", tokenloom=side(5.0), peer=side(10.0)),
        ]
    )
    assert (
        "| title of decode 8 x 16, ms | 2.00 (1.50-2.50) | 1.00 (0.50x, 0.42-0.75) | 9.00 (4.50x, 4.25-4.75) | 3 |"
        in text
    )
    assert "| title of clones, ms | 5.00 (1 round) | - | 10.0 (2.00x, 1 round) | 1 |" in text
    assert "takes no part in that case" in text


def test_threads_that_were_left_out_are_told() -> None:
    crowded = case("decode 8 x 16", tokenloom=side(1.0, threads=1.25))
    assert "title of decode 8 x 16 (1.2 of 2)" in render(report("avx2", crowded))
    quiet = case("decode 8 x 16", tokenloom=side(1.0, threads=2.0))
    assert "left some of its threads out" not in render(report("avx2", quiet))


def test_auto_is_measured_against_the_named_set_of_the_least_median() -> None:
    seconds = [{"auto": 0.011 + 0.01 * slow, "avx2": 0.02, "vnni": 0.010 + 0.01 * slow} for slow in (0, 0, 1, 0)]
    found = compared([{"seconds": one, "cpu": dict.fromkeys(one, 0.1)} for one in seconds])
    assert found["best"] == "vnni"
    assert found["ms"]["avx2"]["median"] == pytest.approx(20)
    assert found["auto_to_best"]["median"] == pytest.approx(1.1)
    assert found["cpu_to_best"]["median"] == 1.0
    for chosen, met in (("avx2", False), ("vnni", True)):
        tables = {name: [name] * 3 for name in ("avx2", "vnni")}
        rows = [{"work": "decode 8 x 16", **found}]
        made = report("vnni", sets={"rows": rows, "tables": {**tables, "auto": [chosen] * 3}})
        [verdict] = [goal["verdicts"][0] for goal in made["goals"] if goal["title"].startswith("`auto`")]
        assert (verdict["against"], verdict["times"], verdict["met"]) == ("`vnni`", AUTO, met)
        [row] = rows_of(goals(made), "`auto`")
        assert row.endswith("met (the same kernels) |" if met else "| **not met** |")


def test_repetitions_go_by_time() -> None:
    assert repeats(0.01, 0.25) == 25
    assert repeats(2.0, 0.25) == 1
    assert repeats(1e-6, 0.25) == 200
    asked = []

    def run(repeat: int) -> tuple[None, list[float]]:
        asked.append(repeat)
        return None, [0.1, *[0.05] * (repeat - 1)]

    assert typical(run, 0.35) == 0.05
    assert typical(run, 0.1) == 0.1
    assert typical(run, 0.1, 4) == 0.05
    assert asked == [1, 3, 1, 1, 4]


def test_builds_of_llama_that_take_part() -> None:
    assert builds(None, quick=True, native=True) == ("native",)
    assert builds(None, quick=False, native=True) == ("native", "wheel")
    assert builds(None, quick=True, native=False) == ("wheel", "native")  # which says why it is not there
    assert builds("wheel", quick=False, native=True) == ("wheel",)
    assert is_beyond(["avx2", "avx_vnni"])
    assert not is_beyond(["avx2", "fma"])


def test_forced_sides_are_all_kept_to_the_set() -> None:
    sides = Sides(2, ("wheel", "native"), "avx2", {"LD_PRELOAD": "a.so"}, ("AVX512",), "it cannot be kept to AVX2")
    for entrants in (sides.engines("Q4_1", True), sides.servers("Q4_1", False)):
        assert {entrant.environment["LD_PRELOAD"] for entrant in entrants.values()} == {"a.so"}
        assert entrants["tokenloom"].environment["TOKENLOOM_KERNELS"] == "avx2"
        assert "tokenloom (AVX2)" not in entrants
    engines = sides.engines("Q4_1", True)
    assert engines["llama.cpp (native)"].settings["without"] == ["AVX512"]
    from benchmarks.comparing.budget import Budget

    with Field({"OpenVINO GenAI": engines["OpenVINO GenAI"]}, Budget(60, 1.5)) as ring:
        assert ring.absent == {"OpenVINO GenAI": "it cannot be kept to AVX2"}


def test_a_short_run_has_the_goals_cases_and_none_fewer() -> None:
    plan = Plan(quick=True, smoke=False, threads=2, models=None, cases=None, llama=None, minutes=1)
    asked = {case.name for *_, cases in plan.stages() for case in cases}
    assert asked == {goal.case for listed in GOALS.values() for goal in listed}
    assert core.kernel_tables("portable")[0] == "portable"
