"""A row's logits depend on its own sequence alone, bit for bit, on the real model with the kernels that it gets here.

Whole rows of logits are compared: not close, the same bits. Other weight types and instruction sets are in
test_invariance_types.py, sampling in test_invariance_sampling.py, restarts in test_invariance_restart.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engine.ways import WAYS, Logits, assert_same, exactly, random_tokens, sequences, whole
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import GgmlEngine, load

LENGTH = 140  # over two pages
LONG = 720


def settings(model_path: Path) -> EngineSettings:
    return EngineSettings(model=model_path, kv_bytes=256 << 20, threads=1, max_batch_tokens=2048)


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[GgmlEngine]:
    engine = load(settings(model_path))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_leaks(engine: GgmlEngine) -> Iterator[None]:
    yield
    assert (engine.stats.sequences, engine.stats.pages_used) == (0, 0)


@pytest.fixture(scope="module")
def tokens(engine: GgmlEngine) -> list[int]:
    return random_tokens(engine, seed=11, count=LENGTH)


@pytest.fixture(scope="module")
def alone(engine: GgmlEngine, tokens: list[int]) -> Logits:
    """All rows of ``tokens`` run in one forward with nothing else in the engine."""
    return whole(engine, tokens)


def test_different_tokens_give_different_logits(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    """What would make every other test here pass for nothing."""
    changed = [*tokens[:50], (tokens[50] + 1) % engine.geometry.vocabulary, *tokens[51:]]
    other = whole(engine, changed)
    assert np.array_equal(other[:50], alone[:50])
    assert not any(np.array_equal(other[i], alone[i]) for i in range(50, LENGTH))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_bits(way: str, alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    assert_same(WAYS[way](engine, tokens), alone)


def test_long_prefills_in_chunks_of_700_and_512(engine: GgmlEngine) -> None:
    """Of which the last row is compared."""
    tokens = random_tokens(engine, 12, LONG)
    rows = []
    for chunk in (LONG, 700, 512):
        with sequences(engine) as new:
            sequence, last = new(), (LONG - 1) // chunk * chunk
            for at in range(0, last, chunk):
                engine.forward([Entry(sequence, tokens[at : at + chunk])])
            rows.append(engine.forward([Entry(sequence, tokens[last:], logits="last")])[0].logits)
    for row in rows[1:]:
        assert_same(([0], row), rows[0])


@pytest.mark.parametrize("threads", [2, 3])
def test_on_more_threads(threads: int, alone: Logits, tokens: list[int], model_path: Path) -> None:
    with exactly(threads):
        several = load(settings(model_path))
    assert several.geometry.threads == threads
    for way in ("chunks of 7", "among 32", "clones"):
        assert_same(WAYS[way](several, tokens), alone)


def test_with_rows_padded_to_odd_numbers(alone: Logits, tokens: list[int], model_path: Path) -> None:
    """The way round matrix kernels that take rows in pairs, forced here on a CPU that has none."""
    odd = load(settings(model_path))
    odd._open.force_odd_rows()
    assert_same((list(range(LENGTH)), whole(odd, tokens)), alone)
    assert_same((list(range(20)), whole(odd, tokens[:20])), alone)
    sequence = odd.new()
    assert_same(([76], odd.forward([Entry(sequence, tokens[:77], logits="last")])[0].logits), alone)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_clones_of_a_long_beginning_that_decode_together(threads: int, engine: GgmlEngine, model_path: Path) -> None:
    """A tree whose shared pages are read once for all, its work cut among the threads; beside a stranger."""
    tokens = random_tokens(engine, 13, 600)
    cuts = [300, 520, 590]
    expected = []
    with sequences(engine) as new:
        sequence = new()
        for begin, end in pairwise([0, *cuts]):
            engine.forward([Entry(sequence, tokens[begin:end])])
            expected.append(engine.forward([Entry(sequence, tokens[end : end + 1], logits="last")])[0].logits)
            engine.rewind(sequence, end)

    with exactly(threads):
        other = load(settings(model_path))
    assert other.geometry.threads == threads
    with sequences(other) as new:
        root, stranger = new(), new()
        other.forward([Entry(root, tokens[:590]), Entry(stranger, random_tokens(other, 14, 400))])
        leaves = [(new(new(root, cuts[i % 3]), cuts[i % 3]), i % 3) for i in range(15)]
        batch = [Entry(leaf, [tokens[cuts[cut]]], logits="last") for leaf, cut in leaves]
        outputs = other.forward([*batch[:7], Entry(stranger, [5, 6, 7]), *batch[7:], Entry(root, [tokens[590]])])
        del outputs[7]
        for (_, cut), output in zip(leaves, outputs, strict=False):
            assert_same(([0], output.logits), expected[cut])


def test_after_batches_of_every_size(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    """Growing, shrinking, with and without outputs: the graph has room for more than a batch has, or is built anew."""
    for size in (1, 33, 2, 130, 40, 1, LENGTH, 5):
        filler = engine.new()
        engine.forward([Entry(filler, tokens[:size])])
        engine.forward([Entry(filler, tokens[:size], logits="all" if size > 128 else "last")])
        engine.remove(filler)
        sequence = engine.new()
        engine.forward([Entry(sequence, tokens[:90])])
        for at in (90, 93):
            rows = engine.forward([Entry(sequence, tokens[at : at + 3], logits="all")])[0].logits
            assert_same(([at, at + 1, at + 2], rows), alone)
        engine.remove(sequence)
