"""The sides that take part: started, asked, and started again when they die. One computes at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.sides.handle import Side, SideLost, started

Answer = dict[str, Any]


@dataclass(frozen=True)
class Entrant:
    """How a side is started. ``otherwise``: changed settings to try when it does not start as it comes."""

    kind: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, Any] | None = None


class Field:
    """All sides of one model file. ``absent`` says why one that was meant to be here is not."""

    def __init__(self, entrants: Mapping[str, Entrant]) -> None:
        self._entrants = dict(entrants)
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
        """See Side.ask. A side that died over it is started again for whatever is asked next."""
        try:
            return self._sides[name].ask(method, **arguments)
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
        side = started(entrant.kind, entrant.settings, otherwise=entrant.otherwise, environment=entrant.environment)
        self._sides[name] = side
        self.about[name] = side.about


@dataclass(frozen=True)
class Question:
    """A method of the sides and its arguments."""

    method: str
    arguments: Mapping[str, Any]


def alternate(
    ring: Field,
    rounds: int,
    ask: Callable[[int], Question],
    figure: Callable[[Answer], float],
    *,
    prepare: Question | None = None,
    details: Callable[[Answer], Answer] = lambda answer: {},
    only: Callable[[str], bool] = lambda name: True,
) -> dict[str, Answer]:
    """Ask every side in turn, ``rounds`` times, beginning with another every time.

    Side -> {"median", "rounds", what it said of its settings, and the last answer's ``details``} or {"missing": why}.
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
        notes[name].update({key: answer[key] for key in ("settings", "tried_ms", "outside_forward") if key in answer})
        return answer

    if prepare is not None:
        for name in list(running):
            one(name, prepare)
    for turn in range(rounds):
        first = turn % max(1, len(running))
        for name in running[first:] + running[:first]:
            answer = one(name, ask(turn))
            if answer is not None:
                figures[name].append(figure(answer))
                notes[name].update(details(answer))
    for name in running:
        found[name] = {"median": statistics.median(figures[name]), "rounds": figures[name], **notes[name]}
    return found
