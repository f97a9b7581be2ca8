"""How many rounds a comparison has time for, in which order sides measure, and what comes of their figures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from benchmarks.comparing.budget import Budget, Share
from benchmarks.comparing.field import OVER, Answer, Entrant, Field, Question, alternate
from benchmarks.comparing.spread import ratios, spread
from benchmarks.comparing.turns import turns
from benchmarks.sides.handle import SideLost


class Clock:
    """Seconds that pass when something says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sides:
    """Sides that take a set time to answer, some of them to a limit of questions."""

    absent = {"d": "it is not installed"}

    def __init__(
        self, clock: Clock, seconds: dict[str, float], lost: dict[str, int] | None = None, slower: float = 1.0
    ) -> None:
        self.clock, self.seconds, self.lost, self.slower = clock, seconds, lost or {}, slower
        self.asked: list[tuple[str, str]] = []

    @property
    def names(self) -> list[str]:
        return list(self.seconds)

    def ask(self, name: str, method: str, /, **arguments: Any) -> Answer:
        self.asked.append((name, method))
        self.clock.now += self.seconds[name]
        self.seconds[name] *= self.slower
        if sum(method == "measure" for who, method in self.asked if who == name) > self.lost.get(name, 1 << 30):
            raise SideLost("it died")
        return {"figure": self.seconds[name], "threads": 2}


def measured(sides: Sides, share: Share, prepare: bool = False) -> dict[str, Answer]:
    return alternate(
        sides, share, lambda turn: Question("measure", {"turn": turn}), lambda answer: float(answer["figure"]),
        prepare=Question("prepare", {}) if prepare else None, only=lambda name: name != "e", clock=sides.clock,
    )  # fmt: skip


def test_quartiles_lie_between_the_values_and_a_single_one_is_all_three() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "count": 5}
    assert spread([1.0, 2.0]) == {"median": 1.5, "q1": 1.25, "q3": 1.75, "count": 2}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "count": 1}
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_a_slow_round_of_all_sides_changes_no_ratio() -> None:
    ours, theirs = [10.0, 20.0, 10.0], [30.0, 60.0, 30.0]
    assert ratios(theirs, ours) == {"median": 3.0, "q1": 3.0, "q3": 3.0, "count": 3}
    assert spread(ours)["q3"] == 15.0
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], ours)


@pytest.mark.parametrize("count", range(1, 9))
def test_over_all_rounds_each_has_every_place_and_follows_each_of_the_others_alike(count: int) -> None:
    names = [str(number) for number in range(count)]
    rounds = [turns(names, turn) for turn in range(2 * count)]
    assert all(sorted(order) == names for order in rounds)
    for place in range(count):
        assert sorted(order[place] for order in rounds) == sorted(2 * names)
    behind = [pair for order in rounds for pair in pairwise(order)]
    assert {pair: behind.count(pair) for pair in behind} == {(a, b): 2 for a in names for b in names if a != b}


def test_nobody_has_no_turns() -> None:
    assert turns([], 3) == []


@pytest.mark.parametrize(
    ("seconds", "rounds", "spent", "last", "goes_on"),
    [
        (100, 1, 20, 80, True),
        (100, 1, 20, 81, False),
        (100, 8, 20, 1, True),
        (100, 9, 20, 1, False),
        (0, 1, 0, 1, False),
    ],
)
def test_another_round_is_one_that_goes_into_the_share(
    seconds: float, rounds: int, spent: float, last: float, goes_on: bool
) -> None:
    assert Share(seconds, 9).goes_on(rounds, spent, last) == goes_on


def test_shares_go_by_weight_and_what_is_left_goes_to_those_after() -> None:
    clock = Clock()
    budget = Budget(200, 1.5, clock)
    assert budget.share(10, 30, 5) == Share(50, 5)
    clock.now += 80  # 30 too long
    assert budget.share(10, 20, 5) == Share(40, 5)
    clock.now += 10  # 30 less than it might
    assert budget.share(10, 10, 5) == Share(55, 5)
    clock.now += 150  # more than there was
    assert budget.share(10, 0, 5) == Share(0, 5)


def test_no_question_waits_beyond_the_end_of_the_run() -> None:
    clock = Clock()
    budget = Budget(600, 1.5, clock)
    assert budget.patience() == 300
    clock.now += 800
    assert budget.patience() == 50
    clock.now += 95
    assert budget.patience() == 5
    assert not budget.over
    clock.now += 5
    assert budget.patience() == 5
    assert budget.over


def test_nothing_is_started_or_asked_after_the_end_of_the_run() -> None:
    with Field({"a": Entrant("engine_ours", {})}, Budget(0, 1)) as ring:
        assert ring.absent == {"a": OVER}
        with pytest.raises(SideLost, match=OVER):
            ring.ask("a", "decode")


def test_a_slow_machine_measures_all_sides_in_fewer_rounds() -> None:
    for factor, rounds in ((1, 5), (3, 2), (100, 1)):
        sides = Sides(Clock(), {"a": 1.0 * factor, "b": 2.0 * factor, "c": 1.0 * factor, "e": 1.0})
        found = measured(sides, Share(45, 5), prepare=True)
        assert {name: len(found[name].get("rounds", [])) for name in found} == {"d": 0, **dict.fromkeys("abc", rounds)}
        assert sides.clock.now - 1000 <= max(45, 8 * factor)


def test_a_machine_that_becomes_slow_measures_no_more_than_it_has_time_for() -> None:
    sides = Sides(Clock(), {"a": 1.0, "b": 1.0}, slower=2.0)
    found = measured(sides, Share(45, 9))
    assert found["a"]["count"] == 4  # 2, 4, 8 and 16 seconds
    assert sides.clock.now - 1000 == 30


def test_a_side_that_is_lost_says_why_and_the_others_go_on() -> None:
    found = measured(Sides(Clock(), {"a": 1.0, "b": 1.0}, lost={"b": 2}), Share(1000, 4))
    assert found["b"] == {"missing": "it died"}
    assert found["d"] == {"missing": "it is not installed"}
    assert found["a"] == {"median": 1.0, "q1": 1.0, "q3": 1.0, "count": 4, "rounds": [1.0] * 4, "threads": 2}


def test_sides_take_turns_within_each_round() -> None:
    sides = Sides(Clock(), {"a": 1.0, "b": 1.0, "c": 1.0})
    measured(sides, Share(1000, 3))
    rounds = [sides.asked[first : first + 3] for first in (0, 3, 6)]
    assert [[name for name, _ in one] for one in rounds] == [turns("abc", turn) for turn in range(3)]
