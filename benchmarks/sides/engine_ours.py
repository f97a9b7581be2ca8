"""tokenloom's engine alone: the seam that the worker drives, without Redis."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sides.shapes import Node, grow, tokens
from tokenloom.native_ext.engine import EngineSettings, Entry, Sampling
from tokenloom.native_ext.ggml import GgmlEngine
from tokenloom.native_ext.native import core

GREEDY = Sampling(temperature=0)
BATCH = 512


class EngineOurs:
    """Prepares sequences, then times forwards on them; every measurement starts from the same lengths."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings``: model, threads, kv_bytes."""
        self._engine = GgmlEngine(
            EngineSettings(
                Path(settings["model"]),
                kv_bytes=settings["kv_bytes"],
                threads=settings["threads"],
                max_batch_tokens=BATCH,
            )
        )
        self._at: dict[int, int] = {}  # node -> sequence
        self._leaves: list[Node] = []

    def about(self) -> dict[str, Any]:
        _, packed, others = self._engine._open.weights()
        return {
            "version": f"tokenloom {version('tokenloom')}", "threads": self._engine.geometry.threads, "note": "",
            "instructions": "kernels {}, attention {}, rows {}".format(*tables()), "packed": packed, "by_ggml": others,
        }  # fmt: skip

    def plant(self, levels: list[list[int]], seconds: float = 0) -> dict[str, Any]:
        """Sequences for every node of the tree; clones share their parents' cells."""
        for sequence in self._at.values():
            self._engine.remove(sequence)
        self._at = {}
        nodes, self._leaves = grow(levels)
        for node in nodes:
            self._at[node.number] = (
                self._engine.new() if node.parent is None else self._engine.clone(self._at[node.parent])
            )
            self._append(self._at[node.number], node.own)
        return {}

    def decode(self, steps: int, seconds: float) -> dict[str, Any]:
        """Steps of all sessions, at most ``steps`` and about ``seconds``; seconds of each, without the first."""
        sequences = [self._at[leaf.number] for leaf in self._leaves]
        last = [[leaf.own[-1]] for leaf in self._leaves]
        times: list[float] = []
        before = self._engine.stats
        while len(times) < 2 or (len(times) <= steps and sum(times) < seconds):
            began = time.perf_counter()
            out = self._engine.forward([Entry(s, t, GREEDY) for s, t in zip(sequences, last, strict=True)])
            times.append(time.perf_counter() - began)
            last = [[int(one.token or 0)] for one in out]
        for sequence, leaf in zip(sequences, self._leaves, strict=True):
            self._engine.rewind(sequence, leaf.length)
        after = self._engine.stats
        used = after.extra["forward_threads"] - before.extra["forward_threads"]
        return {"seconds": times[1:], "threads": used / (after.forwards - before.forwards)}

    def prefill(self, count: int, name: str, tune: bool = False, seconds: float = 0) -> dict[str, Any]:
        """Seconds from an empty sequence to the token behind a prompt of ``count``."""
        sequence = self._engine.new()
        prompt = tokens(name, count)
        began = time.perf_counter()
        self._append(sequence, prompt)
        seconds = time.perf_counter() - began
        self._engine.remove(sequence)
        return {"seconds": [seconds]}

    def close(self) -> None:
        self._engine.close()

    def _append(self, sequence: int, appended: list[int]) -> None:
        for first in range(0, len(appended), BATCH):
            chunk = appended[first : first + BATCH]
            self._engine.forward([Entry(sequence, chunk, GREEDY if first + BATCH >= len(appended) else None)])


def tables() -> tuple[str, str, str]:
    """Kernels of multiplication, of attention and of rows, by the environment."""
    found: tuple[str, str, str] = core.kernel_tables(os.environ.get("TOKENLOOM_KERNELS", "auto"))
    return found


def start(settings: dict[str, Any]) -> EngineOurs:
    """The side, ready."""
    return EngineOurs(settings)
