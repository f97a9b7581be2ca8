"""A row's logits depend on its own sequence alone, bit for bit.

Every test compares whole rows of logits of the real model: not close, the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokenloom.native_ext.engine import EngineSettings, Entry, Sampling
from tokenloom.native_ext.ggml import GgmlEngine, load

Logits = npt.NDArray[np.float32]
LENGTH = 200  # over three pages
KV_BYTES = 256 << 20


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[GgmlEngine]:
    engine = load(EngineSettings(model=model_path, kv_bytes=KV_BYTES, threads=1, max_batch_tokens=1024))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    engine = request.getfixturevalue("engine")
    yield
    for sequence in range(engine.geometry.max_sequences):
        if engine.stats.sequences == 0:
            break
        try:
            engine.remove(sequence)
        except ValueError:
            continue
    assert engine.stats.pages_used == 0


@pytest.fixture(scope="module")
def tokens(engine: GgmlEngine) -> list[int]:
    return random_tokens(engine, seed=11, count=LENGTH)


@pytest.fixture(scope="module")
def alone(engine: GgmlEngine, tokens: list[int]) -> Logits:
    """All rows of ``tokens`` run in one forward with nothing else in the engine."""
    return rows(engine, tokens)


def random_tokens(engine: GgmlEngine, seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, engine.geometry.vocabulary, count)]


def rows(engine: GgmlEngine, tokens: list[int], chunk: int | None = None) -> Logits:
    """All rows of a fresh sequence, in chunks; the sequence is removed."""
    sequence = engine.new()
    logits = extend(engine, sequence, tokens, chunk)
    engine.remove(sequence)
    return logits


def extend(engine: GgmlEngine, sequence: int, tokens: list[int], chunk: int | None = None) -> Logits:
    chunk = chunk or len(tokens)
    parts = [
        engine.forward([Entry(sequence, tokens[at : at + chunk], logits="all")])[0].logits
        for at in range(0, len(tokens), chunk)
    ]
    return np.concatenate(parts)


def same(ours: Any, expected: Logits) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == expected.shape
    assert np.isfinite(ours).all()
    assert np.array_equal(ours.view(np.uint32), expected.view(np.uint32))


def test_different_tokens_give_different_logits(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    """What would make every other test here pass for nothing."""
    changed = [*tokens[:50], (tokens[50] + 1) % engine.geometry.vocabulary, *tokens[51:]]
    other = rows(engine, changed)
    assert np.array_equal(other[:50], alone[:50])
    assert not any(np.array_equal(other[i], alone[i]) for i in range(50, LENGTH))


@pytest.mark.parametrize("chunk", [128, 64, 63, 7, 2, 1])
def test_however_a_prefill_is_cut(chunk: int, alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    same(rows(engine, tokens, chunk), alone)


def test_a_prefill_cut_into_abutting_entries_of_one_batch(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    sequence = engine.new()
    cuts = [0, 1, 3, 70, 71, 128, 190, LENGTH]
    batch = [Entry(sequence, tokens[a:b], logits="all") for a, b in pairwise(cuts)]
    same(np.concatenate([output.logits for output in engine.forward(batch)]), alone)


def test_among_31_other_decodes(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    others = []
    for seed in range(31):
        sequence = engine.new()
        engine.forward([Entry(sequence, random_tokens(engine, seed, 5 + 2 * seed))])
        others.append(sequence)
    ours = engine.new()
    engine.forward([Entry(ours, tokens[:188])])
    for step in range(188, LENGTH - 4):  # across a page's end
        batch = [Entry(s, [(37 * s + step) % 1000], sample=Sampling(temperature=0.0)) for s in others]
        batch.insert(step % 32, Entry(ours, [tokens[step]], logits="last"))
        same(engine.forward(batch)[step % 32].logits[0], alone[step])


def test_beside_a_wide_prefill(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    ours, other = engine.new(), engine.new()
    engine.forward([Entry(ours, tokens[:100])])
    wide = random_tokens(engine, 3, 300)
    prefill, decode = engine.forward([Entry(other, wide, logits="last"), Entry(ours, tokens[100:101], logits="last")])
    same(decode.logits[0], alone[100])
    engine.remove(other)
    other = engine.new()
    same(prefill.logits, engine.forward([Entry(other, wide, logits="last")])[0].logits)


def test_only_the_rows_asked_for_change_nothing(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    sequence = engine.new()
    assert engine.forward([Entry(sequence, tokens[:120])])[0].logits is None
    last = engine.forward([Entry(sequence, tokens[120:150], logits="last")])[0].logits
    same(last, alone[149:150])


def test_clones_at_any_point(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    source = engine.new()
    extend(engine, source, tokens[:150])
    for upto in (150, 149, 128, 65):
        clone = engine.clone(source, upto)
        same(extend(engine, clone, tokens[upto:]), alone[upto:])
    same(extend(engine, source, tokens[150:]), alone[150:])


def test_twenty_clones_decoding_together(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    source = engine.new()
    engine.forward([Entry(source, tokens[:170])])
    family = [source, *(engine.clone(source) for _ in range(20))]
    for step in range(170, 182):
        # All but the last go astray after a while, in their own copies of the shared page.
        stray = [tokens[step] if step < 174 or s == family[-1] else (tokens[step] + s) % 1000 for s in family]
        outputs = engine.forward([Entry(s, [t], logits="last") for s, t in zip(family, stray, strict=True)])
        same(outputs[-1].logits[0], alone[step])
        if step < 174:
            for output in outputs:
                same(output.logits[0], alone[step])


def test_after_rewind_and_replay(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    sequence = engine.new()
    extend(engine, sequence, tokens)
    for to in (LENGTH - 1, 150, 128, 63, 0):
        engine.rewind(sequence, to)
        engine.forward([Entry(sequence, random_tokens(engine, to, 30))])  # another future first
        engine.rewind(sequence, to)
        same(extend(engine, sequence, tokens[to:], 64), alone[to:])


def test_wherever_the_pages_lie(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    """Fillers take the low pages and go one by one, so that the sequence's pages descend."""
    fillers = [engine.new() for _ in range(8)]
    for filler in fillers:
        engine.forward([Entry(filler, [1])])
    by_page = {engine.pages(filler)[0]: filler for filler in fillers}
    sequence, parts = engine.new(), []
    for at, page in zip(range(0, LENGTH, 64), (7, 5, 2, 0), strict=True):
        engine.remove(by_page[page])
        parts.append(extend(engine, sequence, tokens[at : at + 64]))
    assert engine.pages(sequence) == [7, 5, 2, 0]
    same(np.concatenate(parts), alone)


def test_after_a_failed_batch(alone: Logits, engine: GgmlEngine, tokens: list[int]) -> None:
    sequence = engine.new()
    extend(engine, sequence, tokens[:100])
    for bad in (Entry(sequence, [engine.geometry.vocabulary]), Entry(999, [1]), Entry(sequence, [])):
        with pytest.raises(ValueError, match="entry 1"):
            engine.forward([Entry(sequence, tokens[100:110]), bad])
    assert engine.length(sequence) == 100
    same(extend(engine, sequence, tokens[100:]), alone[100:])


@pytest.mark.parametrize("chunk", [None, 30, 1])
def test_whatever_the_number_of_threads(
    chunk: int | None, alone: Logits, engine: GgmlEngine, tokens: list[int], model_path: Path
) -> None:
    two = load(EngineSettings(model=model_path, kv_bytes=KV_BYTES, threads=2, max_batch_tokens=512))
    if two.geometry.threads < 2:
        pytest.fail("this test needs two cores")
    count = LENGTH if chunk != 1 else 20
    same(rows(two, tokens[:count], chunk), alone[:count])


def test_with_rows_padded_to_odd_numbers(
    alone: Logits, engine: GgmlEngine, tokens: list[int], model_path: Path
) -> None:
    """The way round matrix kernels that take rows in pairs, forced here on a CPU that has none."""
    odd = load(EngineSettings(model=model_path, kv_bytes=KV_BYTES, threads=1))
    odd._open.force_odd_rows()
    same(rows(odd, tokens), alone)
    same(rows(odd, tokens[:20], 2), alone[:20])
    sequence = odd.new()
    same(odd.forward([Entry(sequence, tokens[:77], logits="last")])[0].logits, alone[76:77])


def test_sampled_tokens_do_not_depend_on_the_batch(engine: GgmlEngine, tokens: list[int]) -> None:
    settings = [Sampling(temperature=1.0, seed=s, top_p=0.95, repetition_penalty=1.1) for s in range(6)]

    def generate(group: list[Sampling]) -> list[list[int]]:
        sequences = [engine.new() for _ in group]
        fed: list[list[int]] = [tokens[:30]] * len(group)
        out: list[list[int]] = [[] for _ in group]
        for _ in range(12):
            outputs = engine.forward([Entry(s, f, sample=g) for s, f, g in zip(sequences, fed, group, strict=True)])
            fed = [[int(o.token or 0)] for o in outputs]
            for history, new in zip(out, fed, strict=True):
                history += new
        return out

    together = generate(settings)
    assert together == [generate([one])[0] for one in settings]
    assert len({tuple(one) for one in together}) > 1
