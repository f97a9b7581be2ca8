"""What the main loop does while a forward runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tokenloom.worker.jobs.notes import Notes
from tokenloom.worker.main_loop import GATHER, Limits, MainLoop


class Waits(Notes):
    """Notes that remember how long each wait was to be."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)
        super().wait(seconds)


class Story:
    """A main loop whose claims bring the jobs of ``claims`` one after another; the forward lands when there are none.

    Each time the waiters are armed they ring at once, for whatever reason.
    """

    def __init__(self, *claims: list[str]) -> None:
        self.did: list[str] = []
        self.notes = Waits()
        self._claims = list(claims)
        self.room = 10
        self.watching = False
        worker: Any = SimpleNamespace(notes=self.notes, intake=self, read_notes=lambda cycle: self.notes.read())
        worker.stop_requested = self.lost = self.suspended = False
        pulse: Any = SimpleNamespace(polite_until=0.0)
        self.loop = MainLoop(worker, self, None, pulse, self, Limits())  # type: ignore[arg-type]

    def fly(self) -> list[str]:
        """What is done while a forward runs."""
        self.loop._while_in_the_air()
        return self.did

    @property
    def in_the_air(self) -> bool:
        return bool(self._claims)

    def arm(self) -> None:
        self.did.append("arm")
        self.notes.leave()

    def claim(self, most: int) -> list[str]:
        assert most == self.room
        jobs = self._claims.pop(0)
        self.notes.leave()  # whatever happens next, a landing included, leaves a note
        return jobs

    def take(self, jobs: list[str]) -> None:
        self.did += jobs

    def admit(self) -> bool:
        self.did.append("admit")
        return True


def test_a_job_that_comes_while_a_forward_runs_is_begun_before_it_lands() -> None:
    story = Story(["one"], ["two", "three"], [])
    assert story.fly() == ["admit", "arm", "one", "admit", "arm", "two", "three", "admit", "arm"]


def test_an_alarm_that_brings_nothing_is_not_set_again_before_the_next_forward() -> None:
    assert Story([], [], []).fly() == ["admit", "arm", "admit", "admit"]


def test_redis_is_not_asked_for_jobs_all_the_time_while_the_waiters_watch() -> None:
    story = Story(["one"], ["two"], ["three"])
    assert story.loop._take()
    story.watching = True
    assert not story.loop._take()
    story.watching = False  # one of them rang
    assert story.loop._take()
    assert story.did == ["one", "two"]


def test_jobs_that_come_one_by_one_while_a_forward_runs_are_claimed_together() -> None:
    story = Story(["one"], ["two"])
    story.fly()
    assert story.notes.seconds[:2] == [1.0, 1.0]
    (gathering,) = story.notes.seconds[2:]
    assert 0 < gathering <= GATHER, "after the second alarm more may come"


def test_nothing_is_claimed_after_a_landing_that_came_while_a_burst_was_gathered() -> None:
    story = Story(["one"], ["two"])
    wait = story.notes.wait

    def landing(seconds: float) -> None:
        wait(seconds)
        if seconds < 1.0:
            story._claims.clear()

    story.notes.wait = landing  # type: ignore[method-assign]
    assert story.fly() == ["admit", "arm", "one", "admit", "arm"]
