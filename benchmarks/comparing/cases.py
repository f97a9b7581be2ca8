"""The cases, and how each is run. Every figure is milliseconds or seconds: less is better."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.comparing.field import Answer, Field, Question, alternate
from benchmarks.sides.handle import SideLost
from benchmarks.sides.shapes import tokens

#: Beginnings of the names of sides that are tokenloom.
OURS = "tokenloom"
#: Our engine kept to AVX2: runs in the case of its goal alone.
FORCED = "tokenloom (AVX2)"

#: A case of more tokens in cells than this gets two rounds at most.
LONG = 20_000
#: Ends the names of sides that are a loop around an engine.
BY_HAND = "by hand"


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds, steps of a decode round, seconds of one at most, seconds of tuning a peer."""

    rounds: int
    steps: int
    seconds: float
    tuning: float


@dataclass(frozen=True)
class Case:
    """What is asked. ``name`` is unique within a model."""

    name: str
    title: str


@dataclass(frozen=True)
class Decode(Case):
    """A token for each session of a tree; milliseconds a step."""

    levels: tuple[tuple[int, int], ...]

    def run(self, ring: Field, effort: Effort) -> dict[str, Answer]:
        """The median step of each round."""
        cells = sum(count * own for count, own in self.levels)
        return alternate(
            ring,
            min(effort.rounds, 2) if cells > LONG else effort.rounds,
            lambda turn: Question("decode", {"steps": effort.steps, "seconds": effort.seconds}),
            lambda answer: 1000 * statistics.median(answer["seconds"]),
            prepare=Question(
                "plant", {"levels": [list(level) for level in self.levels], "seconds": effort.tuning, "within": 400}
            ),
            only=lambda name: name != FORCED or self.name == "decode 32 x 16",
        )


@dataclass(frozen=True)
class Prefill(Case):
    """A prompt alone, to its first token; milliseconds."""

    tokens: int

    def run(self, ring: Field, effort: Effort) -> dict[str, Answer]:
        """Each round has another prompt."""
        return alternate(
            ring,
            min(effort.rounds, 2) if self.tokens > 1024 else effort.rounds,
            lambda turn: Question(
                "prefill", {"count": self.tokens, "name": f"prefill {turn}", "tune": self.tunes(turn)}
            ),
            lambda answer: 1000 * float(answer["seconds"][0]),
            prepare=Question("prefill", {"count": 64, "name": "warm", "tune": False}),
            only=lambda name: name != FORCED,
        )

    def tunes(self, turn: int) -> bool:
        """Whether a peer tries its settings first: once, and for a long prompt not again after the short one's."""
        return turn == 0 and self.tokens <= 1024


@dataclass(frozen=True)
class EndToEnd(Case):
    """Sessions that begin at once; seconds until all have their answers."""

    sessions: int
    prompt: int
    answer: int

    def run(self, ring: Field, effort: Effort) -> dict[str, Answer]:
        """Each round has other prompts, so that no cache of prompts helps."""

        def prompts(label: str) -> list[list[int]]:
            return [tokens(f"{label} {number}", self.prompt) for number in range(self.sessions)]

        def checked(answer: Answer) -> float:
            if answer["tokens"] != self.sessions * self.answer:
                raise RuntimeError(f"{answer['tokens']} tokens instead of {self.sessions * self.answer}")
            return float(answer["seconds"])

        return alternate(
            ring,
            effort.rounds,
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

    def run(self, ring: Field, effort: Effort) -> dict[str, Answer]:
        """One round: its figures are over all chats and tokens. The median shown is that of first tokens."""
        chance = random.Random(7)
        arrivals = sorted(chance.uniform(0, self.window) for _ in range(self.chats))
        prompts = [tokens(f"chat {number}", self.prompt) for number in range(self.chats)]
        return alternate(
            ring,
            1,
            lambda turn: Question("chats", {"arrivals": arrivals, "prompts": prompts, "count": self.answer}),
            lambda answer: spread(arrivals, answer["times"])["first_p50"],
            details=lambda answer: spread(arrivals, answer["times"]),
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

    def run(self, ring: Field, effort: Effort) -> dict[str, Answer]:
        """One round."""
        prompts = [tokens(f"restart {number}", self.prompt) for number in range(self.sessions)]
        found = alternate(
            ring,
            1,
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
            with Field({name: ring.entrant(name)}) as alone:
                if alone.absent:
                    return {"missing": alone.absent[name]}
                answer = alone.ask(name, "first_tokens", prompts=told)
        except SideLost as error:
            return {"missing": str(error)}
        figure = middle({"seconds": [at - began for at in answer["at"]]})
        return {"median": figure, "rounds": [figure]}


def is_served(name: str) -> bool:
    """Whether it takes requests while others run; a loop around an engine does not."""
    return not name.endswith(BY_HAND)


def middle(answer: Answer) -> float:
    """The median session's seconds."""
    return float(statistics.median(answer["seconds"]))


def spread(arrivals: Sequence[float], times: Sequence[Sequence[float]]) -> dict[str, float]:
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


def independent(sessions: int, context: int) -> Decode:
    """Sessions that share nothing."""
    title = f"decode, {sessions} session{'s' if sessions > 1 else ''} x {context} tokens"
    return Decode(f"decode {sessions} x {context}", title, ((sessions, context),))


SHORT = [independent(1, 16), independent(8, 16), independent(32, 16)]
PREFILL_512 = Prefill("prefill 512", "prefill of 512 tokens", 512)
PREFILL_4096 = Prefill("prefill 4096", "prefill of 4,096 tokens", 4096)
CLONES = Decode("clones", "decode, 32 clones of a 2,048-token prefix, 32 private tokens each", ((1, 2048), (32, 32)))
TREE = Decode(
    "tree", "decode, 32 leaves of a tree of clones: 1,024, 4 x 256, 32 x 32 tokens", ((1, 1024), (4, 256), (32, 32))
)
END_TO_END = EndToEnd("end to end", "32 sessions, 128 tokens in, 64 out", 32, 128, 64)
MIXED = Mixed("mixed", "32 chats arriving at random within 12 s, 300 tokens in, 100 out", 32, 300, 100, 12.0)
RESTART = Restart("restart", "restart of 32 sessions with 144 tokens each", 32, 128, 16)
