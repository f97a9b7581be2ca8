"""Where others compete for the cores, a forward takes as many threads as have proved faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenloom.native_ext.native import core

if TYPE_CHECKING:
    from tokenloom.native_ext._core import ThreadChoice


def run(choice: ThreadChoice, forwards: int, cost: Callable[[int], tuple[float, float]], rows: int = 8) -> list[int]:
    """The threads chosen; ``cost`` gives the seconds, and the CPU seconds, of a forward on so many."""
    chosen = []
    for _ in range(forwards):
        threads = choice.choose(rows)
        choice.report(rows, threads, *cost(threads))
        chosen.append(threads)
    return chosen


def quiet(threads: int) -> tuple[float, float]:
    return 1 / threads, 0.98


def crowded(threads: int) -> tuple[float, float]:
    """One core of all is taken: waiting for the last thread costs more than it brings."""
    return (10.0, 11.0) if threads == 2 else (1.0, 1.0)


def test_all_threads_on_a_quiet_machine() -> None:
    assert run(core.ThreadChoice(2), 200, quiet) == [2] * 200
    assert run(core.ThreadChoice(8), 50, quiet) == [8] * 50
    assert run(core.ThreadChoice(1), 50, lambda threads: (1.0, 0.1)) == [1] * 50


def test_half_of_them_where_that_is_faster_and_all_tried_now_and_then() -> None:
    chosen = run(core.ThreadChoice(2), 100, crowded)
    assert chosen[:2] == [2, 1]
    assert 90 <= chosen.count(1) < 99


def test_all_of_them_where_that_is_still_faster() -> None:
    """A wide prefill, whose threads wait seldom."""
    chosen = run(core.ThreadChoice(2), 100, lambda threads: (3.0, 4.0) if threads == 2 else (5.0, 5.0))
    assert chosen.count(2) >= 90


def test_all_again_when_the_machine_is_quiet_again() -> None:
    choice = core.ThreadChoice(2)
    run(choice, 60, crowded)
    assert run(choice, 60, quiet)[-30:] == [2] * 30


def test_a_forward_suddenly_slower_counts_as_disturbed_though_all_cores_were_busy() -> None:
    choice = core.ThreadChoice(2)
    run(choice, 10, quiet)
    chosen = run(choice, 50, lambda threads: (2.0, 4.0) if threads == 2 else (1.0, 1.0))
    assert chosen.count(1) > 40


def test_batches_of_other_sizes_are_judged_apart() -> None:
    choice = core.ThreadChoice(2)
    run(choice, 40, crowded, rows=1)
    assert run(choice, 10, quiet, rows=512) == [2] * 10
