"""What one forward runs: decodes first, then prefill chunks in rotation, within a budget of tokens.

A long prompt never stalls running streams: each decode is one token and always comes first, and what remains of the
budget is dealt to the prompts a chunk at a time, tenant by tenant, starting one further each cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .fairness import in_turn
from .step import Step


@dataclass(slots=True)
class Share:
    """``count`` tokens of a step's log, from position ``start``; ``sample`` when they reach the log's end."""

    step: Step
    start: int
    count: int
    sample: bool


@dataclass(slots=True)
class Ready:
    """A step with cells: ``start`` is the first position to run, ``end`` where its log ends.

    ``generating``: a token is to be sampled there.
    """

    step: Step
    start: int
    end: int
    generating: bool

    @property
    def todo(self) -> int:
        return self.end - self.start


class Scheduler:
    """Deals a budget of ``max_tokens`` a cycle."""

    def __init__(self, max_tokens: int, prefill_chunk: int) -> None:
        self.max_tokens = max_tokens
        self.prefill_chunk = prefill_chunk
        self._turn = 0

    def plan(self, ready: Iterable[Ready]) -> list[Share]:
        """Shares of the next forward; at most one a step, together at most the budget."""
        self._turn += 1
        decodes: list[Ready] = []
        prefills: list[Ready] = []
        for item in ready:
            (decodes if item.end - item.start == 1 else prefills).append(item)
        budget = self.max_tokens
        shares = [Share(item.step, item.start, 1, item.generating) for item in rotated(decodes, self._turn)[:budget]]
        if not prefills:
            return shares
        queue = in_turn(rotated(prefills, self._turn), lambda item: item.step.tenant)
        dealt = deal([item.todo for item in queue], budget - len(shares), self.prefill_chunk)
        shares.extend(share(item, count) for item, count in zip(queue, dealt, strict=True) if count)
        return shares


def share(item: Ready, count: int) -> Share:
    """The next ``count`` tokens of a step."""
    sample = item.generating and item.start + count == item.end
    return Share(item.step, item.start, count, sample)


def deal(wants: list[int], budget: int, chunk: int) -> list[int]:
    """How much each gets: up to a chunk in turn, round after round, until the budget or the wants are spent."""
    given = [0] * len(wants)
    while budget > 0 and any(got < want for got, want in zip(given, wants, strict=True)):
        for index, want in enumerate(wants):
            part = min(chunk, want - given[index], budget)
            given[index] += part
            budget -= part
    return given


def rotated(items: list[Ready], turn: int) -> list[Ready]:
    """The same items, starting further along each turn."""
    if not items:
        return items
    first = turn % len(items)
    return items[first:] + items[:first]
