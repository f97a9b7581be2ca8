"""The sides that take part: started, asked, and started again when they die. One computes at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.comparing.budget import Budget, Share
from benchmarks.comparing.spread import spread
from benchmarks.comparing.turns import turns
from benchmarks.sides.handle import Side, SideLost, started

Answer = dict[str, Any]

OVER = "the run's time was over"
#: What sides say beside their figures that is kept.
NOTED = ("settings", "tried_ms", "outside_forward", "threads")


@dataclass(frozen=True)
class Entrant:
    """How a side is started. ``otherwise``: changed settings to try when it does not start as it comes.

    ``left_out``: why it is not, if it is not.
    """

    kind: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, Any] | None = None
    left_out: str = ""


class Field:
    """All sides of one model file. ``absent`` says why one that was meant to be here is not."""

    def __init__(self, entrants: Mapping[str, Entrant], budget: Budget) -> None:
        self._entrants = dict(entrants)
        self.budget = budget
        self._sides: dict[str, Side] = {}
        self.absent: dict[str, str] = {}
        self.about: dict[str, Answer] = {}
        for name in self._entrants:
            try:
                self._start(name)
            except SideLost as lost:
                self.absent[name] = str(lost)

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.close()

    @property
    def names(self) -> list[str]:
        """Of all that can be asked."""
        return list(self._sides)

    def ask(self, name: str, method: str, /, **arguments: Any) -> Answer:
        """See Side.ask; returns when the side rests. One that died over it is started again for what is asked next."""
        if self.budget.over:
            raise SideLost(OVER)
        try:
            answer = self._sides[name].ask(method, within=self.budget.patience(), **arguments)
            self._sides[name].settle()
            return answer
        except SideLost:
            if not self._sides[name].alive:
                self._sides.pop(name).close()
                try:
                    self._start(name)
                except SideLost as again:
                    self.absent[name] = str(again)
            raise

    def entrant(self, name: str) -> Entrant:
        """How that side is started."""
        return self._entrants[name]

    def _start(self, name: str) -> None:
        entrant = self._entrants[name]
        if entrant.left_out:
            raise SideLost(entrant.left_out)
        if self.budget.over:
            raise SideLost(OVER)
        side = started(
            entrant.kind,
            entrant.settings,
            otherwise=entrant.otherwise,
            environment=entrant.environment,
            start=self.budget.patience(),
        )
        self._sides[name] = side
        self.about[name] = side.about


@dataclass(frozen=True)
class Question:
    """A method of the sides and its arguments."""

    method: str
    arguments: Mapping[str, Any]


class Ring(Protocol):
    """What alternate() needs of a Field."""

    absent: dict[str, str]

    @property
    def names(self) -> list[str]: ...

    def ask(self, name: str, method: str, /, **arguments: Any) -> Answer: ...


def alternate(
    ring: Ring,
    share: Share,
    ask: Callable[[int], Question],
    figure: Callable[[Answer], float],
    *,
    prepare: Question | None = None,
    details: Callable[[Answer], Answer] = lambda answer: {},
    only: Callable[[str], bool] = lambda name: True,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Answer]:
    """Ask every side in turn, in another order every round, as many rounds as the share of the time allows.

    Side -> a Spread, "rounds", what it said of its settings, and the last answer's ``details``, or {"missing": why}.
    """
    found: dict[str, Answer] = {name: {"missing": why} for name, why in ring.absent.items() if only(name)}
    running = [name for name in ring.names if only(name)]
    notes: dict[str, Answer] = {name: {} for name in running}
    figures: dict[str, list[float]] = {name: [] for name in running}

    def one(name: str, question: Question) -> Answer | None:
        try:
            answer = ring.ask(name, question.method, **question.arguments)
        except SideLost as lost:
            found[name] = {"missing": str(lost)}
            running.remove(name)
            return None
        notes[name].update({key: answer[key] for key in NOTED if key in answer})
        return answer

    began = clock()
    if prepare is not None:
        for name in list(running):
            one(name, prepare)
    turn, last = 0, 0.0
    while turn == 0 or (running and share.goes_on(turn, clock() - began, last)):
        last = -clock()
        for name in turns(running, turn):
            answer = one(name, ask(turn))
            if answer is not None:
                figures[name].append(figure(answer))
                notes[name].update(details(answer))
        turn += 1
        last += clock()
    for name in running:
        found[name] = {**spread(figures[name]), "rounds": figures[name], **notes[name]}
    return found
