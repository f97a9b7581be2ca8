"""Attention over pages: the formula, the same bits whatever runs it beside what, and each shared page read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokenloom.native_ext.native import core

Array = npt.NDArray[Any]
Run = tuple[int, int, list[int]]
KERNELS = core.attention_kernels()
PAGE = 64
SPAN = 4 * PAGE


@dataclass
class Cells:
    """Keys and values of pages, (pages, 64, kv_heads, head_size), and queries for so many rows."""

    query: Array
    keys: Array
    values: Array

    @staticmethod
    def random(rows: int, pages: int, heads: int, kv_heads: int, head_size: int, seed: int = 1) -> Cells:
        rng = np.random.default_rng(seed)
        shape = (pages, PAGE, kv_heads, head_size)
        query = rng.standard_normal((rows, heads, head_size)) * rng.uniform(0.3, 3, (rows, heads, 1))
        keys, values = rng.standard_normal(shape), rng.standard_normal(shape) + 0.5
        return Cells(query.astype(np.float32), keys.astype(np.float32), values.astype(np.float32))

    def attend(
        self,
        runs: list[Run],
        kernels: str = "portable",
        kind: str = "f16",
        threads: int = 1,
        rows: Any = ...,
        **more: Any,
    ) -> Array:
        out: Array = core.attend(self.query[rows], self.keys, self.values, runs, kernels, kind, threads, **more)[0]
        return out

    def expected(
        self, runs: list[Run], kind: str = "f16", window: int = 0, cap: float = 0.0, sinks: Sequence[float] = ()
    ) -> Array:
        """In float64, of cells as they are stored."""
        keys, values = (stored(cells, kind) for cells in (self.keys, self.values))
        out = np.zeros((*self.query.shape[:2], values.shape[3]))
        group = self.query.shape[1] // keys.shape[2]
        row = 0
        for count, position, pages in runs:
            k, v = (cells[pages].reshape(-1, *cells.shape[2:]).repeat(group, axis=1) for cells in (keys, values))
            for i in range(count):
                seen = position + i + 1
                first = max(0, seen - window) if window else 0
                scores = np.einsum("hd,jhd->hj", self.query[row].astype(np.float64), k[first:seen])
                scores = scores / np.sqrt(keys.shape[3])
                scores = cap * np.tanh(scores / cap) if cap else scores
                weights = np.exp(scores - scores.max(1, keepdims=True))
                total = weights.sum(1, keepdims=True)
                if len(sinks):
                    total = total + np.exp(np.array(sinks)[:, None] - scores.max(1, keepdims=True))
                out[row] = np.einsum("hj,jhd->hd", weights / total, v[first:seen])
                row += 1
        return out


def stored(cells: Array, kind: str) -> Array:
    if kind == "f16":
        return cells.astype(np.float16).astype(np.float64)
    scale = (np.abs(cells).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float64)
    rounded: Array = np.clip(np.rint(cells / np.where(scale > 0, scale, 1)), -127, 127) * scale
    return rounded


def same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def test_the_reference_is_there() -> None:
    assert KERNELS[0] == "portable"
    assert set(KERNELS) <= {"portable", "avx2", "avx512"}


@pytest.mark.parametrize(
    ("fault", "chosen"),
    [("none", "faulty"), ("wrong", "portable"), ("illegal", "portable"), ("unusable", "portable")],
)
def test_kernels_with_a_fault_are_found_out_before_they_are_chosen(fault: str, chosen: str) -> None:
    """The last bit of one number; an instruction that this machine lacks, which ends a child process alone."""
    assert core.chosen_attention(fault) == chosen


#: What layers may have beside plain attention.
KINDS: dict[str, dict[str, Any]] = {
    "a window of one": {"window": 1},
    "a window within a page": {"window": 9},
    "a window of a page": {"window": 64},
    "a window across pages": {"window": 100},
    "a window across spans": {"window": 300},
    "a window that nobody fills": {"window": 5000},
    "a cap": {"cap": 2.0},
    "sinks": {"sinks": [0.5, -3.0, 2.0, 8.0]},
    "all of it": {"window": 70, "cap": 3.0, "sinks": [1.0, 0.0, -1.0, 4.0]},
}


@pytest.mark.parametrize("kind", ["f16", "int8"])
@pytest.mark.parametrize("name", KINDS)
def test_windows_caps_and_sinks_are_the_formula_and_the_same_bits_with_every_kernel(name: str, kind: str) -> None:
    """For prefills and decodes in one batch, and the same for each row alone; keys and values of different sizes."""
    runs: list[Run] = [
        (150, 0, [1, 2, 6]),
        (1, 0, [5]),
        (30, 250, [7, 6, 5, 4, 3]),
        (1, 319, [0, 1, 2, 3, 4]),
        (2, 62, [2, 0]),
        (1, 600, [7, 0, 6, 1, 5, 2, 4, 3, 7, 0]),
    ]
    rows = sum(run[0] for run in runs)
    cells = Cells.random(rows, 8, 4, 2, 32, seed=3)
    cells.values = cells.values[..., :24].copy()
    made = cells.attend(runs, kind=kind, **KINDS[name])
    expected = cells.expected(runs, kind, **KINDS[name])
    assert np.abs(made - expected).max() < 3e-6 * np.abs(cells.values).max()
    for kernels in KERNELS:
        for threads in (1, 3):
            assert same(cells.attend(runs, kernels, kind, threads, **KINDS[name]), made), (kernels, threads)
    row = 0
    for count, position, pages in runs:
        for i in range(count):
            alone = cells.attend([(1, position + i, pages)], KERNELS[-1], kind, rows=slice(row, row + 1), **KINDS[name])
            assert same(alone, made[row : row + 1]), (position + i,)
            row += 1


def test_a_windowed_layer_reads_the_pages_of_the_window_alone() -> None:
    runs: list[Run] = [(1, 1000, list(range(16))), (3, 639, list(range(20, 31)))]
    visits, _, _ = core.attention_reads(runs, 1, 1, 64, 1, window=100)
    assert sorted(page for _, page, _ in visits) == [14, 15, 28, 29, 30]


SHAPES = {
    "as in SmolLM2": (9, 3, 64),
    "one head": (1, 1, 32),
    "a kv head per head, 128": (2, 2, 128),
    "groups of 8, 80": (8, 1, 80),
    "groups of 5, 72": (5, 1, 72),
    "groups of 13, 8": (13, 1, 8),
    "256": (2, 1, 256),
    "20, no whole vectors": (4, 2, 20),
    "6, below a vector": (2, 1, 6),
}


@pytest.mark.parametrize("kind", ["f16", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_the_formula_and_the_same_bits_with_every_kernel(shape: str, kind: str) -> None:
    """For prefills from and across pages and spans, and decodes, all in one batch."""
    runs: list[Run] = [
        (70, 0, [1, 2]),
        (1, 0, [5]),
        (30, 250, [7, 6, 5, 4, 3]),
        (1, 319, [0, 1, 2, 3, 4]),
        (5, 62, [2, 0]),
    ]
    cells = Cells.random(107, 8, *SHAPES[shape])
    reference = cells.attend(runs, kind=kind)
    expected = cells.expected(runs, kind)
    assert np.abs(reference - expected).max() < 2e-6 * np.abs(expected).max()
    for kernels in KERNELS:
        assert same(cells.attend(runs, kernels, kind), reference)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_a_row_is_the_same_alone_and_in_any_run(kernels: str, kind: str) -> None:
    cells = Cells.random(200, 8, 6, 2, 64)
    pages = [3, 1, 4, 0, 5, 2]
    whole = cells.attend([(200, 150, pages)], kernels, kind)
    for row in (0, 1, 41, 42, 105, 106, 199):
        assert same(cells.attend([(1, 150 + row, pages)], kernels, kind, rows=slice(row, row + 1))[0], whole[row])
    for cut in (1, 7, 64, 100):
        assert same(cells.attend([(cut, 150, pages), (200 - cut, 150 + cut, pages)], kernels, kind), whole)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_any_number_of_positions_alone_and_where_others_see_more(kernels: str, kind: str) -> None:
    """At each position of two pages: few queries read a page as it is stored, many a copy; NaN lies behind.

    Each run has all pages of its sequence, those behind its position too, as when another run of it follows.
    """
    together, alone = (Cells.random(128, 2, 6, 2, 64) for _ in range(2))
    rows = together.attend([(1, position, [0, 1]) for position in range(128)], kernels, kind)
    assert np.abs(rows - together.expected([(128, 0, [0, 1])], kind)).max() < 1e-5
    for position in reversed(range(128)):
        out = alone.attend([(1, position, [0, 1])], kernels, kind, rows=slice(position, position + 1))
        assert same(out[0], rows[position])
        for cells in (alone.keys, alone.values):
            cells[position // PAGE, position % PAGE] = np.nan


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["f16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 7, 64])
def test_sharing_pages_and_cutting_the_work_change_no_bit(kernels: str, kind: str, threads: int) -> None:
    """A tree of clones, against the same sequences with pages of their own."""
    rng = np.random.default_rng(4)
    runs: list[Run] = []
    for branch in range(3):
        stem = [0, 1, 2, 3, 4, *range(10 + 3 * branch, 13 + 3 * branch)][: 5 + branch]
        for twig in range(4):
            own = len(stem) * PAGE + int(rng.integers(0, 90))
            runs.append((1 if twig else 9, own, [*stem, 20 + 2 * len(runs), 21 + 2 * len(runs)]))
    runs.append((40, 600, list(range(50, 62))))  # a stranger
    runs = [runs[i] for i in rng.permutation(len(runs))]
    rows = sum(run[0] for run in runs)
    cells = Cells.random(rows, 70, 6, 2, 32)
    shared = cells.attend(runs, kernels, kind, threads)

    first = np.cumsum([0, *(run[0] for run in runs)])
    for i, (count, position, pages) in enumerate(runs):
        alone = cells.attend([(count, position, pages)], kernels, kind, rows=slice(first[i], first[i + 1]))
        assert same(alone, shared[first[i] : first[i + 1]])


def test_unwritten_cells_and_another_sequences_nan_are_never_seen() -> None:
    """A page may hold anything behind a run's last position."""
    cells = Cells.random(40, 2, 2, 1, 16)
    runs: list[Run] = [(40, 30, [0, 1])]
    for kind in ("f16", "int8"):
        clean = cells.attend(runs, kind=kind)
        cells.keys[1, 6:], cells.values[1, 6:] = np.nan, np.nan
        for kernels in KERNELS:
            assert same(cells.attend(runs, kernels, kind), clean)
        cells.keys[1, 6:], cells.values[1, 6:] = np.inf, 0  # infinite keys are not written at all
        assert same(cells.attend(runs, kind=kind), clean)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_nan_is_kept_and_large_numbers_are_clipped(kernels: str, kind: str) -> None:
    cells = Cells.random(1, 1, 1, 1, 16)
    cells.values[0, 3] = 1e30
    cells.query[:] = 0
    out = cells.attend([(1, 3, [0])], kernels, kind)
    assert np.allclose(out[0, 0], (cells.values[0, :3, 0].sum(0) + 65504) / 4, rtol=1e-2)
    for where in (cells.keys, cells.values):
        kept = where[0, 2, 0, 5]
        where[0, 2, 0, 5] = np.nan
        assert np.isnan(cells.attend([(1, 3, [0])], kernels, kind)[0, 0, 5])
        where[0, 2, 0, 5] = kept


@pytest.mark.parametrize("kernels", KERNELS)
def test_scores_far_apart(kernels: str) -> None:
    """The largest wins, be it first or last; what is e^-69 of it counts for nothing."""
    cells = Cells.random(1, 6, 1, 1, 16)
    cells.query[:] = 4.0
    cells.keys[:] = 0.0
    for page, offset in ((0, 0), (0, 63), (3, 63), (4, 0), (5, 10)):
        cells.keys[page, offset] = 1000.0
        out = cells.attend([(1, 330, [0, 1, 2, 3, 4, 5])], kernels)
        assert np.array_equal(out[0, 0], cells.values[page, offset, 0].astype(np.float16).astype(np.float32))
        cells.keys[page, offset] = 0.0


def reads(runs: list[Run], threads: int) -> tuple[Counter[tuple[int, int]], int, int]:
    """How often each page is read at its index for a KV head; checks that each row reads its own pages, once each."""
    visits, items, floats = core.attention_reads(runs, 9, 3, 64, threads)
    seen: Counter[tuple[int, int]] = Counter()
    by_row: dict[int, list[tuple[int, int]]] = {}
    for index, page, rows in visits:
        seen[index, page] += 1
        for row in rows:
            by_row.setdefault(row, []).append((index, page))
    row = 0
    for count, position, pages in runs:
        for i in range(count):
            assert sorted(by_row[row]) == list(enumerate(pages[: (position + i) // PAGE + 1]))
            row += 1
    return seen, items, floats


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_clones_read_a_shared_page_once(threads: int) -> None:
    prefix = list(range(32))
    runs: list[Run] = [(1, 2048 + 32, [*prefix, 100 + i]) for i in range(32)]
    strangers: list[Run] = [(1, 700, [*range(200 + 11 * i, 211 + 11 * i)]) for i in range(8)]
    mixed = [run for pair in zip(runs, strangers * 4, strict=True) for run in pair][:40] + runs[20:]
    seen, items, _ = reads(mixed, threads)
    assert all(seen[index, index] == 1 for index in range(32))
    assert items >= 2 * threads


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_a_tree_of_clones_reads_each_of_its_pages_once(threads: int) -> None:
    runs: list[Run] = []
    for a in range(2):
        for b in range(3):
            for c in range(4):
                pages = [
                    *range(10),
                    *(100 + 7 * a + i for i in range(7)),
                    *(200 + 30 * a + 5 * b + i for i in range(5)),
                ]
                runs.append((1, PAGE * 22 + c, [*pages, 500 + len(runs)]))
    runs = [runs[i] for i in np.random.default_rng(1).permutation(len(runs))]
    seen, _, _ = reads(runs, threads)
    assert set(seen.values()) == {1}
    assert len(seen) == 10 + 2 * 7 + 6 * 5 + 24


def test_prefills_behind_a_shared_beginning_share_it() -> None:
    runs: list[Run] = [(12, PAGE * 20, [*range(20), 50 + i]) for i in range(5)]
    seen, _, _ = reads(runs, 2)
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_the_work_is_balanced_and_its_storage_bounded(threads: int) -> None:
    """Batches of any shape: enough items for the threads, or small ones; never more than 32 MiB stored."""
    batches: list[list[Run]] = [
        [(1, 8000, list(range(126)))],
        [(512, 0, list(range(8)))],
        [(512, 100_000, list(range(1600)))],
        [(1, 60_000 + i, [*range(930), *range(1000 + 20 * i, 1020 + 20 * i)]) for i in range(256)],
        [(1, 1000, list(range(20 * i, 20 * i + 20))) for i in range(32)],
    ]
    for runs in batches:
        _, items, floats = reads(runs, threads)
        assert floats * 4 <= 32 << 20
        assert items >= 2 * threads
        if threads == 1:
            assert floats == 0


def test_bad_arguments_are_refused() -> None:
    cells = Cells.random(2, 1, 2, 1, 8)
    for runs in ([(2, 63, [0])], [(1, 0, [0])], [(2, 0, [1])], []):
        with pytest.raises(ValueError, match="run"):
            cells.attend(runs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sse"):
        cells.attend([(2, 0, [0])], "sse")
