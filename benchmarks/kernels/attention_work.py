"""Attention of one layer of SmolLM2-135M, as a forward has it: what is asked, how long it takes, how much it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.native_ext.native import core

HEADS, KV_HEADS, HEAD_SIZE, PAGE = 9, 3, 64, 64


@dataclass(frozen=True)
class Work:
    """``sequences`` of ``rows`` new tokens behind ``before`` others, the first ``shared`` of them in cells of all."""

    title: str
    sequences: int
    rows: int
    before: int
    shared: int = 0

    def runs(self) -> list[tuple[int, int, list[int]]]:
        """(rows, first position, pages) of each sequence."""
        stem = list(range(self.shared // PAGE))
        own = -(-(self.before + self.rows) // PAGE) - len(stem)
        first = len(stem)
        return [
            (self.rows, self.before, [*stem, *range(first + number * own, first + (number + 1) * own)])
            for number in range(self.sequences)
        ]

    @property
    def operations(self) -> float:
        """Multiplications and additions of scores and outputs, of positions that are seen."""
        seen = sum(self.before + row + 1 for row in range(self.rows))
        return 4.0 * self.sequences * seen * HEADS * HEAD_SIZE

    @property
    def cell_bytes(self) -> float:
        """Of all keys and values, read once each."""
        pages = {page for _, _, pages in self.runs() for page in pages}
        return 2.0 * 2 * len(pages) * PAGE * KV_HEADS * HEAD_SIZE

    def run(self, repeat: int, kernels: str | None = None, kind: str = "f16") -> list[float]:
        """CPU seconds of each repetition, on one thread."""
        runs = self.runs()
        random = np.random.default_rng(1)
        query: Any = random.standard_normal((self.sequences * self.rows, HEADS, HEAD_SIZE), np.float32)
        shape = (1 + max(max(pages) for _, _, pages in runs), PAGE, KV_HEADS, HEAD_SIZE)
        keys, values = (random.standard_normal(shape, np.float32) for _ in range(2))
        seconds: list[float]
        _, seconds = core.attend(query, keys, values, runs, kernels or core.attention_kernels()[-1], kind, 1, repeat)
        return seconds


WORK = [
    Work("decode, 1 sequence x 1,024", 1, 1, 1023),
    Work("decode, 32 sequences x 1,024", 32, 1, 1023),
    Work("decode, 32 clones of 2,048, 32 own", 32, 1, 2048 + 31, 2048),
    Work("prefill of 512", 1, 512, 0),
    Work("prefill, 128 behind 3,968", 1, 128, 3968),
]
