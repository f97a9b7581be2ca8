"""A team of threads does every item of every phase once, in the order of the phases, whoever is there to help."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tokenloom.native_ext.native import core


@pytest.mark.parametrize("most", [1, 5, 1 << 30])
@pytest.mark.parametrize("items", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_item_once_and_after_the_phase_before(threads: int, items: int, most: int) -> None:
    team = core.ThreadTeam(threads)
    for phases in (0, 1, 2, 500):
        values, done = team.run_phases(phases, items, threads, most)
        assert values == [phases] * items
        assert sum(done) == phases * items


def test_no_items_are_no_work() -> None:
    assert core.ThreadTeam(2).run_phases(10, 0, 2) == ([], [0, 0])


@pytest.mark.parametrize("working", [1, 2, 3])
def test_only_the_threads_of_the_shift_work(working: int) -> None:
    team = core.ThreadTeam(4)
    for _ in range(20):
        values, done = team.run_phases(200, 100, working)
        assert values == [200] * 100
        assert not any(done[working:])


def test_others_do_help() -> None:
    """In long phases: whoever slept has time to wake."""
    team = core.ThreadTeam(2)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        _, done = team.run_phases(20, 1_000_000, 2)
        if min(done) > 0:
            return
    pytest.fail("the second thread never got an item")


def test_shifts_of_changing_size_in_quick_succession() -> None:
    team = core.ThreadTeam(4)
    for i in range(2000):
        assert team.run_phases(3, 9, 1 + i % 4, 2)[0] == [3] * 9


def test_teams_come_and_go() -> None:
    for _ in range(200):
        assert core.ThreadTeam(3).run_phases(2, 10, 3)[0] == [2] * 10
        core.ThreadTeam(3)


def test_threads_sleep_between_shifts() -> None:
    def states() -> set[str]:
        found = set()
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) not in before:
                found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    before = {int(name) for name in os.listdir("/proc/self/task")}
    team = core.ThreadTeam(4)
    team.run_phases(100, 100, 4)
    deadline = time.monotonic() + 60
    while states() != {"S"}:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    assert states() == {"S"}
