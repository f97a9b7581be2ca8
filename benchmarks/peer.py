"""The peer: llama.cpp's server, from the package ``xllamacpp``; as a side, sides/server_llama.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.memory import peak_memory
from benchmarks.sides.handle import started


class Peer:
    """One llama.cpp server. ``note`` says how it differs from what was asked for, if it does."""

    def __init__(self, model: Path, *, threads: int, slots: int, context: int) -> None:
        """``slots`` sessions of at most ``context`` tokens each. Raises SideLost when it cannot be had."""
        served = {"model": str(model), "threads": threads, "slots": slots, "context": context, "unified": False}
        self._side = started("server_llama", {**served, "repack": True}, otherwise={"repack": False})
        self.note: str = self._side.about["note"]

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, int]:
        """Continue every prompt by ``count`` tokens, all at once: seconds, tokens generated. Raises SideLost."""
        answer = self._side.ask("generate", prompts=[list(prompt) for prompt in prompts], count=count)
        return float(answer["seconds"]), int(answer["tokens"])

    def memory(self) -> int:
        """Bytes resident at the peak."""
        return peak_memory(self._side.pid)

    def close(self) -> None:
        """End its process."""
        self._side.close()
