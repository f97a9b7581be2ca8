"""Ways to compute the same rows of logits: whatever is done with a sequence, its rows must have the same bits.

Each way runs ``tokens``, some more than 64 or 128 of them, in the engine, and gives back rows of their logits with the
positions they belong to; it leaves no sequence behind. What they are compared with is ``whole``: one forward, and
nothing else in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokenloom.native_ext.engine import Entry, Sampling
from tokenloom.native_ext.ggml import GgmlEngine
from tokenloom.native_ext.native import core

Logits = npt.NDArray[np.float32]
Rows = tuple[list[int], Logits]
Way = Callable[[GgmlEngine, Sequence[int]], Rows]


@contextmanager
def exactly(threads: int) -> Iterator[None]:
    """Engines loaded meanwhile take just so many threads: more than there are cores, and whatever the clock says."""
    real = core.Engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "Engine", lambda *args, **settings: real(*args, **settings, fixed_threads=threads))
        yield


def whole(engine: GgmlEngine, tokens: Sequence[int]) -> Logits:
    """Float32 (tokens, vocabulary)."""
    with sequences(engine) as new:
        return forward(engine, new(), tokens)


def assert_same(ours: Rows, expected: Logits) -> None:
    """The same bits, and numbers."""
    positions, rows = ours
    assert rows.dtype == expected.dtype == np.float32
    assert np.isfinite(rows).all()
    theirs = expected[positions]
    assert rows.shape == theirs.shape
    differing = np.nonzero((rows.view(np.uint32) != theirs.view(np.uint32)).any(1))[0]
    assert not len(differing), f"rows {[positions[i] for i in differing][:8]} of {len(positions)} differ"


def random_tokens(engine: GgmlEngine, seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, engine.geometry.vocabulary, count)]


@contextmanager
def sequences(engine: GgmlEngine) -> Iterator[Callable[..., int]]:
    """Makes sequences, new or (given a source and a length) clones; those made are removed in the end, last first."""
    made: list[int] = []

    def make(source: int | None = None, upto: int | None = None) -> int:
        made.append(engine.new() if source is None else engine.clone(source, upto))
        return made[-1]

    try:
        yield make
    finally:
        for sequence in reversed(made):
            engine.remove(sequence)


def forward(engine: GgmlEngine, sequence: int, tokens: Sequence[int], chunk: int | None = None) -> Logits:
    """Append the tokens in chunks, and give all their rows."""
    chunk = chunk or len(tokens)
    entries = [Entry(sequence, tokens[at : at + chunk], logits="all") for at in range(0, len(tokens), chunk)]
    return np.concatenate([engine.forward([entry])[0].logits for entry in entries])


def chunks_of(size: int) -> Way:
    """A prefill in chunks of so many tokens."""

    def way(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
        with sequences(engine) as new:
            return list(range(len(tokens))), forward(engine, new(), tokens, size)

    return way


def abutting(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """One batch of entries that follow each other."""
    size = len(tokens)
    cuts = sorted({0, 1, 3, size // 3, size // 3 + 1, 128 if size > 128 else size // 2, size - 1, size})
    with sequences(engine) as new:
        sequence = new()
        outputs = engine.forward([Entry(sequence, tokens[a:b], logits="all") for a, b in pairwise(cuts)])
        return list(range(size)), np.concatenate([output.logits for output in outputs])


def among(others: int, steps: int = 6) -> Way:
    """Decoding one token at a time across the end of a page, with so many others of all lengths."""

    def way(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
        first = len(tokens) // 64 * 64 - steps // 2
        rows, positions = [], list(range(first, first + steps))
        with sequences(engine) as new:
            crowd = [new() for _ in range(others)]
            engine.forward([Entry(s, random_tokens(engine, s, 3 + 2 * i)) for i, s in enumerate(crowd)])
            ours = new()
            engine.forward([Entry(ours, tokens[:first])])
            for position in positions:
                batch = [Entry(s, [(37 * s + position) % 90], sample=Sampling(temperature=0.0)) for s in crowd]
                place = position % (others + 1)
                batch.insert(place, Entry(ours, [tokens[position]], logits="last"))
                rows.append(engine.forward(batch)[place].logits)
        return positions, np.concatenate(rows)

    return way


def beside_a_prefill(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """A decode and a chunk of the same length of tokens, beside a wide prefill of another sequence."""
    middle = len(tokens) // 2
    with sequences(engine) as new:
        ours, other = new(), new()
        engine.forward([Entry(ours, tokens[:middle])])
        entries = [Entry(other, random_tokens(engine, 3, 90)), Entry(ours, tokens[middle : middle + 1], logits="all")]
        decode = engine.forward(entries)[1].logits
        chunk = engine.forward([Entry(ours, tokens[middle + 1 :], logits="all"), Entry(other, [1, 2, 3])])[0].logits
        return list(range(middle, len(tokens))), np.concatenate([decode, chunk])


def only_the_last_row(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """Other rows are not asked for."""
    with sequences(engine) as new:
        sequence = new()
        engine.forward([Entry(sequence, tokens[:-9])])
        return [len(tokens) - 1], engine.forward([Entry(sequence, tokens[-9:], logits="last")])[0].logits


def shuffled_pages(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """Fillers take the low pages and go one by one, so that the sequence's pages descend."""
    pages = (len(tokens) + 63) // 64
    fillers = [engine.new() for _ in range(2 * pages)]
    for filler in fillers:
        engine.forward([Entry(filler, [1])])
    by_page = sorted((engine.pages(filler)[0], filler) for filler in fillers)
    sequence, parts = engine.new(), []
    for at in range(0, len(tokens), 64):
        engine.remove(by_page.pop()[1])
        parts.append(forward(engine, sequence, tokens[at : at + 64]))
    order = engine.pages(sequence)
    assert order == sorted(order, reverse=True)
    assert len(order) == pages
    for _, filler in by_page:
        engine.remove(filler)
    engine.remove(sequence)
    return list(range(len(tokens))), np.concatenate(parts)


def clones(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """A tree of clones three deep, cut within and at the ends of pages, whose leaves go on in one batch."""
    size = len(tokens)
    positions: list[int] = []
    parts: list[Logits] = []
    with sequences(engine) as new:
        root = new()
        forward(engine, root, tokens[: size - 20])
        cuts = [size - 20, size - 21, size // 64 * 64 if size % 64 > 20 else 64, 65, 1]
        family = [(new(root, upto), upto) for upto in cuts]
        grandchildren = [(new(child, upto - 1), upto - 1) for child, upto in family if upto > 1]
        leaves = [(new(child, upto), upto) for child, upto in grandchildren]
        strays = [new(root, upto) for upto in (size - 20, 64)]
        everyone = [(root, size - 20), *family, *grandchildren, *leaves]
        batch = [Entry(s, tokens[upto : upto + 3], logits="all") for s, upto in everyone]
        outputs = engine.forward([*batch, *(Entry(s, random_tokens(engine, s, 5)) for s in strays)])
        for (_, upto), output in zip(everyone, outputs, strict=False):
            positions += range(upto, upto + 3)
            parts.append(output.logits)
        for sequence, upto in family:
            positions += range(upto + 3, size)
            parts.append(forward(engine, sequence, tokens[upto + 3 :], 48))
    return positions, np.concatenate(parts)


def rewound(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """Back to several places, each time after another future."""
    size = len(tokens)
    positions: list[int] = []
    parts: list[Logits] = []
    with sequences(engine) as new:
        sequence = new()
        forward(engine, sequence, tokens)
        for to in (size - 1, size * 3 // 4, 64, 63, 0):
            engine.rewind(sequence, to)
            engine.forward([Entry(sequence, random_tokens(engine, to, 30))])
            engine.rewind(sequence, to)
            positions += range(to, size)
            parts.append(forward(engine, sequence, tokens[to:], 70))
    return positions, np.concatenate(parts)


def after_a_failure(engine: GgmlEngine, tokens: Sequence[int]) -> Rows:
    """Batches that were refused have changed nothing."""
    middle = len(tokens) // 2
    with sequences(engine) as new:
        sequence = new()
        forward(engine, sequence, tokens[:middle])
        for bad in (Entry(sequence, [engine.geometry.vocabulary]), Entry(999, [1]), Entry(sequence, [])):
            try:
                engine.forward([Entry(sequence, tokens[middle : middle + 10]), bad])
            except ValueError:
                continue
            raise AssertionError("the batch was not refused")
        return list(range(middle, len(tokens))), forward(engine, sequence, tokens[middle:])


#: By name. Chunks as large as a batch may be are the caller's to add.
WAYS: dict[str, Way] = {
    "chunks of 64": chunks_of(64),
    "chunks of 63": chunks_of(63),
    "chunks of 7": chunks_of(7),
    "chunks of 1": chunks_of(1),
    "abutting": abutting,
    "among 1": among(1),
    "among 32": among(32),
    "beside a prefill": beside_a_prefill,
    "only the last row": only_the_last_row,
    "shuffled pages": shuffled_pages,
    "clones": clones,
    "rewound": rewound,
    "after a failure": after_a_failure,
}


def differing(results: dict[str, Any], expected: Logits) -> list[str]:
    """Names of the ways whose rows are not the expected ones."""
    wrong = []
    for name, rows in results.items():
        try:
            assert_same(rows, expected)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    return wrong
