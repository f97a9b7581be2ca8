"""The cases, and how each is run. Every figure is milliseconds or seconds: less is better."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.comparing.budget import Share
from benchmarks.comparing.field import Answer, Field, Question, alternate
from benchmarks.comparing.spread import spread
from benchmarks.sides.handle import SideLost
from benchmarks.sides.shapes import tokens

#: Beginnings of the names of sides that are tokenloom.
OURS = "tokenloom"
#: Our engine kept to AVX2: runs in the case of its goal alone.
FORCED = "tokenloom (AVX2)"

#: Of a case whose figures come of one round.
ONCE = Share(0.0, 1)
#: Ends the names of sides that are a loop around an engine.
BY_HAND = "by hand"


@dataclass(frozen=True)
class Effort:
    """How much is measured: steps of a decode round, and seconds of one at most."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """What is asked. ``name`` is unique within a model; ``weight`` is the part of a run's time that it is given."""

    name: str
    title: str
    weight: float


@dataclass(frozen=True)
class Decode(Case):
    """A token for each session of a tree; milliseconds a step."""

    levels: tuple[tuple[int, int], ...]

    def run(self, ring: Field, effort: Effort, share: Share) -> dict[str, Answer]:
        """The median step of each round."""
        return alternate(
            ring,
            share,
            lambda turn: Question("decode", {"steps": effort.steps, "seconds": effort.seconds}),
            lambda answer: 1000 * statistics.median(answer["seconds"]),
            prepare=Question(
                "plant", {"levels": [list(level) for level in self.levels], "seconds": tuning(ring, share)}
            ),
            only=lambda name: name != FORCED or self.name == "decode 32 x 16",
        )


@dataclass(frozen=True)
class Prefill(Case):
    """A prompt alone, to its first token; milliseconds."""

    tokens: int

    def run(self, ring: Field, effort: Effort, share: Share) -> dict[str, Answer]:
        """Each round has another prompt."""
        return alternate(
            ring,
            share,
            lambda turn: Question("prefill", {"count": self.tokens, "name": f"prefill {turn}", "tune": False}),
            lambda answer: 1000 * float(answer["seconds"][0]),
            prepare=Question("prefill", {**self.warming(), "seconds": tuning(ring, share)}),
            only=lambda name: name != FORCED,
        )

    def warming(self) -> dict[str, Any]:
        """What goes before the first round: peers try their settings, unless the prompt is long; the short one's do."""
        return {"count": self.tokens if self.tokens <= 1024 else 64, "name": "warm", "tune": self.tokens <= 1024}


@dataclass(frozen=True)
class EndToEnd(Case):
    """Sessions that begin at once; seconds until all have their answers."""

    sessions: int
    prompt: int
    answer: int

    def run(self, ring: Field, effort: Effort, share: Share) -> dict[str, Answer]:
        """Each round has other prompts, so that no cache of prompts helps."""

        def prompts(label: str) -> list[list[int]]:
            return [tokens(f"{label} {number}", self.prompt) for number in range(self.sessions)]

        def checked(answer: Answer) -> float:
            if answer["tokens"] != self.sessions * self.answer:
                raise RuntimeError(f"{answer['tokens']} tokens instead of {self.sessions * self.answer}")
            return float(answer["seconds"])

        return alternate(
            ring,
            share,
            lambda turn: Question("generate", {"prompts": prompts(f"round {turn}"), "count": self.answer}),
            checked,
            prepare=Question("generate", {"prompts": prompts("warm")[:4], "count": 4}),
        )


@dataclass(frozen=True)
class Mixed(Case):
    """Chats that arrive at random; time to first token and between tokens, milliseconds."""

    chats: int
    prompt: int
    answer: int
    window: float

    def run(self, ring: Field, effort: Effort, share: Share) -> dict[str, Answer]:
        """One round: its figures are over all chats and tokens. The median shown is that of first tokens."""
        chance = random.Random(7)
        arrivals = sorted(chance.uniform(0, self.window) for _ in range(self.chats))
        prompts = [tokens(f"chat {number}", self.prompt) for number in range(self.chats)]
        return alternate(
            ring,
            ONCE,
            lambda turn: Question("chats", {"arrivals": arrivals, "prompts": prompts, "count": self.answer}),
            lambda answer: waits(arrivals, answer["times"])["first_p50"],
            details=lambda answer: waits(arrivals, answer["times"]),
            only=is_served,
        )


@dataclass(frozen=True)
class Restart(Case):
    """Sessions in mid-answer whose process dies; seconds from the new one's start to the median session's next token.

    tokenloom's worker is killed and finds its sessions in Redis. A peer keeps nothing: it is started anew and given the
    prompts and what was generated so far, by a client that has kept them.
    """

    sessions: int
    prompt: int
    so_far: int

    def run(self, ring: Field, effort: Effort, share: Share) -> dict[str, Answer]:
        """One round."""
        prompts = [tokens(f"restart {number}", self.prompt) for number in range(self.sessions)]
        found = alternate(
            ring,
            ONCE,
            lambda turn: Question("restart", {"prompts": prompts, "count": self.so_far}),
            middle,
            only=lambda name: name.startswith(OURS),
        )
        for name, why in ring.absent.items():
            found.setdefault(name, {"missing": why})
        for name in ring.names:
            if is_served(name) and name not in found:
                found[name] = self._peer(ring, name, prompts)
        return found

    def _peer(self, ring: Field, name: str, prompts: Sequence[Sequence[int]]) -> Answer:
        told = [[*prompt, *tokens(f"told {number}", self.so_far)] for number, prompt in enumerate(prompts)]
        began = time.time()
        try:
            with Field({name: ring.entrant(name)}, ring.budget) as alone:
                if alone.absent:
                    return {"missing": alone.absent[name]}
                answer = alone.ask(name, "first_tokens", prompts=told)
        except SideLost as error:
            return {"missing": str(error)}
        figure = middle({"seconds": [at - began for at in answer["at"]]})
        return {**spread([figure]), "rounds": [figure]}


def tuning(ring: Field, share: Share) -> float:
    """Seconds for each of those that try their settings."""
    return share.tuning(sum(name.startswith("llama.cpp") for name in ring.names))


def is_served(name: str) -> bool:
    """Whether it takes requests while others run; a loop around an engine does not."""
    return not name.endswith(BY_HAND)


def middle(answer: Answer) -> float:
    """The median session's seconds."""
    return float(statistics.median(answer["seconds"]))


def waits(arrivals: Sequence[float], times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Milliseconds: to the first token, and from each token to the next, p50 and p99."""
    first = [1000 * (seen[0] - arrival) for arrival, seen in zip(arrivals, times, strict=True)]
    between = [1000 * (b - a) for seen in times for a, b in pairwise(seen)]
    return {
        "first_p50": percentile(first, 50), "first_p99": percentile(first, 99),
        "between_p50": percentile(between, 50), "between_p99": percentile(between, 99),
        "all_seconds": max(seen[-1] for seen in times),
    }  # fmt: skip


def percentile(values: Sequence[float], of: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * of / 100))]


AnyCase = Decode | Prefill | EndToEnd | Mixed | Restart


def independent(sessions: int, context: int, weight: float) -> Decode:
    """Sessions that share nothing."""
    title = f"decode, {sessions} session{'s' if sessions > 1 else ''} x {context} tokens"
    return Decode(f"decode {sessions} x {context}", title, weight, ((sessions, context),))


# Weights: about the seconds that preparing and three rounds take on two cores.
SHORT = [independent(1, 16, 3), independent(8, 16, 5), independent(32, 16, 11)]
LONG = independent(32, 1024, 32)
PREFILL_512 = Prefill("prefill 512", "prefill of 512 tokens", 12, 512)
PREFILL_4096 = Prefill("prefill 4096", "prefill of 4,096 tokens", 60, 4096)
CLONES_TITLE = "decode, 32 clones of a 2,048-token prefix, 32 private tokens each"
CLONES = Decode("clones", CLONES_TITLE, 40, ((1, 2048), (32, 32)))
TREE_TITLE = "decode, 32 leaves of a tree of clones: 1,024, 4 x 256, 32 x 32 tokens"
TREE = Decode("tree", TREE_TITLE, 35, ((1, 1024), (4, 256), (32, 32)))
END_TO_END = EndToEnd("end to end", "32 sessions, 128 tokens in, 64 out", 90, 32, 128, 64)
MIXED = Mixed("mixed", "32 chats arriving at random within 12 s, 300 tokens in, 100 out", 70, 32, 300, 100, 12.0)
RESTART = Restart("restart", "restart of 32 sessions with 144 tokens each", 35, 32, 128, 16)
