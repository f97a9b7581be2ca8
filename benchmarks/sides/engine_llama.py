"""llama.cpp's engine alone: ``llama_decode`` with a token of every sequence in one batch, no server.

It gets its best settings: for every shape of sessions, unified and split KV cells and flash attention on and off are
tried first, and the quickest is what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.sides import llama_library
from benchmarks.sides.llama_context import BATCH, LlamaContext
from benchmarks.sides.shapes import Node, grow, tokens

#: Room behind each session for the tokens it decodes.
ROOM = 64


class EngineLlama:
    """One loaded model, and the context of the shape measured now."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings``: model, threads, build (native, wheel), repack (llama.cpp's extra buffer types).

        ``without``: beginnings of what the build must not have among its features, or RuntimeError says that it has.
        """
        self._library = llama_library.load(settings["build"])
        self._features = llama_library.features(self._library)
        beyond = [name for name in self._features if name.startswith(tuple(settings.get("without", [])))]
        if beyond:
            raise RuntimeError(f"left out: built with {', '.join(beyond)}, which nothing switches off")
        self._threads = settings["threads"]
        self._build = settings["build"]
        params = self._library.llama_model_default_params()
        params.use_extra_bufts = settings["repack"]
        self._model = self._library.llama_model_load_from_file(settings["model"].encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {settings['model']}")
        self._context: LlamaContext | None = None
        self._leaves: list[Node] = []
        self._best = (False, True)  # unified, flash
        self._prefills: dict[tuple[int, bool], LlamaContext] = {}  # by length of the prompt and flash attention

    def about(self) -> dict[str, Any]:
        return {
            "version": llama_library.version(self._build), "threads": self._threads, "note": "",
            "instructions": ", ".join(self._features),
        }  # fmt: skip

    def plant(self, levels: list[list[int]], tune: bool = True, seconds: float = 60) -> dict[str, Any]:
        """Fill the tree's nodes in the quickest of the settings, as far as ``seconds`` allow to try them."""
        self._drop()
        alone = len(levels) == 1 and levels[0][0] == 1
        every = [(False, True), (True, True), (False, False), (True, False)]
        every.sort(key=lambda pair: pair != self._best)  # there may be time for the first only
        wanted = every if tune else [self._best]
        if alone:
            wanted = [pair for pair in wanted if not pair[0]] or [(False, self._best[1])]
        began = time.perf_counter()
        found: dict[tuple[bool, bool], tuple[float, LlamaContext]] = {}
        for pair in wanted:
            if found and (time.perf_counter() - began) * (1 + 1 / len(found)) > seconds:
                break
            context = self._planted(levels, *pair)
            self._context = context
            found[pair] = (statistics.median(self.decode(3 if tune else 1, 1.0)["seconds"]), context)
        self._best = min(found, key=lambda pair: found[pair][0])
        for pair, (_, context) in found.items():
            if pair != self._best:
                context.close()
        self._context = found[self._best][1]
        return {
            "settings": named(self._best),
            "tried_ms": {named(p): round(1000 * s, 1) for p, (s, _) in found.items()},
        }

    def decode(self, steps: int, seconds: float) -> dict[str, Any]:
        """Steps of all sessions, at most ``steps`` and about ``seconds``; seconds of each, without the first."""
        assert self._context is not None
        last = [leaf.own[-1] for leaf in self._leaves]
        times: list[float] = []
        while len(times) < 2 or (len(times) <= steps and sum(times) < seconds):
            step = len(times)
            began = time.perf_counter()
            last = self._context.run(
                [(leaf.number, leaf.length + step, token, True) for leaf, token in zip(self._leaves, last, strict=True)]
            )
            times.append(time.perf_counter() - began)
        for leaf in self._leaves:
            self._context.cut(leaf.number, leaf.length)
        return {"seconds": times[1:]}

    def prefill(self, count: int, name: str, tune: bool = False, seconds: float = 0) -> dict[str, Any]:
        """Seconds from an empty sequence to the token behind a prompt of ``count``.

        ``tune``: with flash attention and without, if ``seconds`` allow for both, and what is quicker stays.
        """
        self._drop()
        prompt = tokens(name, count)
        flash = self._best[1]
        tried = {flash: self._prefilled(prompt, flash)}
        if tune and 2 * tried[flash] <= seconds:
            tried[not flash] = self._prefilled(prompt, not flash)
        self._best = (self._best[0], min(tried, key=lambda flash: tried[flash]))
        return {"seconds": [min(tried.values())], "settings": named(self._best)}

    def generate(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Continue every prompt by ``count`` tokens, all at once: the loop a server has, without the server."""
        self._drop()
        longest = max(map(len, prompts)) + count
        context = self._new(len(prompts), longest, len(prompts) * longest, *self._best)
        began = time.perf_counter()
        last = context_prompts(context, prompts)
        for step in range(count - 1):
            last = context.run([(s, len(prompts[s]) + step, token, True) for s, token in enumerate(last)])
        seconds = time.perf_counter() - began
        context.close()
        return {"seconds": seconds, "tokens": count * len(prompts), "settings": named(self._best)}

    def close(self) -> None:
        self._drop()

    def _new(self, sequences: int, length: int, cells: int, unified: bool, flash: bool) -> LlamaContext:
        return LlamaContext(
            self._library, self._model, sequences=sequences, length=length, cells=cells, threads=self._threads,
            unified=unified, flash=flash,
        )  # fmt: skip

    def _planted(self, levels: list[list[int]], unified: bool, flash: bool) -> LlamaContext:
        nodes, self._leaves = grow(levels)
        longest = max(node.length for node in nodes) + ROOM
        cells = sum(len(node.own) for node in nodes) + len(self._leaves) * ROOM
        context = self._new(len(nodes), longest, cells, unified, flash)
        roots = [node for node in nodes if node.parent is None]
        context.fill(0, 0, roots[0].own)
        context.copy(0, [node.number for node in roots[1:]])  # their tokens do not matter for the time
        for node in nodes[len(roots) :]:
            assert node.parent is not None
            context.share(node.parent, node.number)
            context.fill(node.number, node.length - len(node.own), node.own)
        return context

    def _prefilled(self, prompt: list[int], flash: bool) -> float:
        key = (len(prompt), flash)
        if key not in self._prefills:
            self._prefills[key] = self._new(1, len(prompt) + ROOM, len(prompt) + ROOM, False, flash)
        context = self._prefills[key]
        context.clear()
        began = time.perf_counter()
        context.fill(0, 0, prompt)
        return time.perf_counter() - began

    def _drop(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None


def context_prompts(context: LlamaContext, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Run every prompt in full batches; the most likely next token of each."""
    rows = [
        (sequence, position, token, position == len(prompt) - 1)
        for sequence, prompt in enumerate(prompts)
        for position, token in enumerate(prompt)
    ]
    return [token for first in range(0, len(rows), BATCH) for token in context.run(rows[first : first + BATCH])]


def named(pair: tuple[bool, bool]) -> str:
    """The settings in words."""
    return f"{'unified' if pair[0] else 'split'} cells, flash attention {'on' if pair[1] else 'off'}"


def start(settings: dict[str, Any]) -> EngineLlama:
    """The side, ready. It has decoded once: llama.cpp's native path is known to die there on some machines."""
    side = EngineLlama(settings)
    side.plant([[1, 32]], tune=False)
    return side
