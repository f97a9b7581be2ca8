"""Where others compete for the cores, a forward takes as many threads as have proved faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenloom.native_ext.native import core

if TYPE_CHECKING:
    from tokenloom.native_ext._core import ThreadChoice


def run(choice: ThreadChoice, forwards: int, cost: Callable[[int], tuple[float, float]], rows: int = 8) -> list[int]:
    """The threads chosen; ``cost`` gives the seconds of a forward on so many, and how many of them were lost."""
    chosen = []
    for _ in range(forwards):
        threads = choice.choose(rows)
        choice.report(rows, threads, *cost(threads))
        chosen.append(threads)
    return chosen


def quiet(threads: int) -> tuple[float, float]:
    return 1 / threads, 0.02 / threads


def crowded(threads: int) -> tuple[float, float]:
    """Waiting for the last thread costs more than it brings."""
    return (3.0, 2.0) if threads == 2 else (1.0, 0.0)


def test_all_threads_on_a_quiet_machine() -> None:
    assert run(core.ThreadChoice(2), 200, quiet) == [2] * 200
    assert run(core.ThreadChoice(8), 50, quiet) == [8] * 50
    assert run(core.ThreadChoice(1), 50, lambda threads: (1.0, 0.9)) == [1] * 50


def test_half_of_them_where_that_is_faster_and_all_tried_now_and_then() -> None:
    chosen = run(core.ThreadChoice(2), 100, crowded)
    assert chosen[:8] == [2, 2, 2, 1, 1, 1, 1, 1]
    assert 2 in chosen[4:]
    assert chosen.count(1) >= 92


def test_the_slower_one_is_tried_less_and_less_often() -> None:
    chosen = run(core.ThreadChoice(2), 3000, crowded)
    assert 2 in chosen[-300:]
    assert chosen[-1000:].count(2) <= 4


def test_all_of_them_where_that_is_still_faster() -> None:
    chosen = run(core.ThreadChoice(2), 200, lambda threads: (3.0, 1.0) if threads == 2 else (5.0, 0.0))
    assert chosen.count(1) == 3


def test_one_disturbed_forward_in_three_changes_nothing() -> None:
    choice, chosen = core.ThreadChoice(2), []
    for _ in range(50):
        chosen += run(choice, 1, crowded) + run(choice, 2, quiet)
    assert chosen == [2] * 150


def test_all_again_when_the_machine_is_quiet_again() -> None:
    choice = core.ThreadChoice(2)
    run(choice, 60, crowded)
    assert run(choice, 150, quiet)[-20:] == [2] * 20


def test_a_passing_disturbance_costs_few_forwards() -> None:
    """It may be over by the time that half of the threads have been tried: then all of them soon prove faster again."""
    for crowded_forwards in range(4, 9):
        choice = core.ThreadChoice(2)
        assert run(choice, crowded_forwards, crowded)[-1] == 1
        assert run(choice, 40, quiet).count(1) <= 4


def test_batches_of_other_sizes_are_judged_apart() -> None:
    choice = core.ThreadChoice(2)
    run(choice, 40, crowded, rows=1)
    assert run(choice, 10, quiet, rows=512) == [2] * 10
