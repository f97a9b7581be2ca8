"""The memory of cells follows the pages in use, and a batch that cannot be done changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import (
    BatchError,
    CellsExhausted,
    ContextFull,
    EngineError,
    EngineSettings,
    Entry,
    Sampling,
)
from tokenloom.native_ext.ggml import GgmlEngine, load

TINY = TinyLlama(context=256)
PAGE = 2 * 2 * 2 * 2 * 16 * 64  # bytes: keys and values, float16, layers, kv heads, head size, positions
GREEDY = Sampling(temperature=0.0)


@pytest.fixture
def engine(tmp_path: Path) -> GgmlEngine:
    path = TINY.write(tmp_path / "m.gguf")
    return load(EngineSettings(model=path, kv_bytes=6 * PAGE, threads=1, max_batch_tokens=300, max_sequences=4))


def test_cells_of_int8_take_a_byte_a_number_and_a_scale_for_each_head(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.gguf")
    page = 2 * 2 * 2 * (16 + 2) * 64  # keys and values, layers, kv heads, head size and scale, positions
    engine = load(EngineSettings(model=path, kv_bytes=6 * PAGE, threads=1, kv_type="int8"))
    assert engine.geometry.page_bytes == page
    assert engine.geometry.max_pages == 6 * PAGE // page == 10
    with pytest.raises(EngineError, match="kv_type is 'q4'; it must be f16 or int8"):
        load(EngineSettings(model=path, threads=1, kv_type="q4"))  # type: ignore[arg-type]


def continuation(engine: GgmlEngine, sequence: int, last: int) -> list[int]:
    """Eight greedy tokens after ``last``; the sequence is put back."""
    length, out = engine.length(sequence), [last]
    for _ in range(8):
        token = engine.forward([Entry(sequence, out[-1:], sample=GREEDY)])[0].token
        assert token is not None
        out.append(token)
    engine.rewind(sequence, length)
    return out


REFUSED: dict[str, tuple[Callable[[int, int], list[Entry]], type[EngineError], str]] = {
    "a token below the vocabulary": (lambda a, b: [Entry(a, [1]), Entry(b, [3, -1])], BatchError, "entry 1.*token -1"),
    "a token above it": (lambda a, b: [Entry(a, [97])], BatchError, "token 97 .* from 0 to 96"),
    "a token of 64 bits": (lambda a, b: [Entry(a, [2**40])], BatchError, "entry 0.*1099511627776"),
    "a token that is no number": (lambda a, b: [Entry(a, ["x"])], BatchError, "entry 0.*'x'"),  # type: ignore[list-item]
    "tokens that are no list": (lambda a, b: [Entry(a, 5)], BatchError, "tokens is 5"),  # type: ignore[arg-type]
    "no tokens": (lambda a, b: [Entry(a, [1]), Entry(b, [])], BatchError, "entry 1.*empty"),
    "no such sequence": (lambda a, b: [Entry(3, [1])], BatchError, "sequence 3"),
    "a wide batch": (lambda a, b: [Entry(a, [1] * 200), Entry(b, [1] * 101)], BatchError, "301 tokens; .* is 300"),
    "logits of an unknown kind": (lambda a, b: [Entry(a, [1], logits="some")], BatchError, "'some'"),  # type: ignore[arg-type]
    "bad sampling settings": (lambda a, b: [Entry(a, [1], sample=Sampling(top_p=2.0))], BatchError, "top_p"),
    "a full context": (lambda a, b: [Entry(a, [1] * 157)], ContextFull, "256"),
    "too few pages": (lambda a, b: [Entry(a, [1] * 100), Entry(b, [1] * 150)], CellsExhausted, "4 pages .* 3 are free"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_batch_changes_nothing(name: str, engine: GgmlEngine) -> None:
    make, kind, message = REFUSED[name]
    a, b = engine.new(), engine.new()
    engine.forward([Entry(a, [*range(90), *[5] * 10]), Entry(b, [7] * 30)])
    before = [continuation(engine, s, 3) for s in (a, b)]
    with pytest.raises(kind, match=message):
        engine.forward(make(a, b))
    assert (engine.length(a), engine.length(b), engine.stats.pages_used) == (100, 30, 3)
    assert [continuation(engine, s, 3) for s in (a, b)] == before


def test_a_failure_after_the_computation_changes_nothing(engine: GgmlEngine) -> None:
    """Sampling fails when the bias leaves no token; by then the batch's keys and values are in their cells."""
    a = engine.new()
    engine.forward([Entry(a, [5] * 70)])
    b = engine.clone(a)
    before = continuation(engine, a, 3), continuation(engine, b, 4)
    pages = engine.stats.pages_used
    nothing_left = Sampling(temperature=0.0, logit_bias=tuple((t, float("-inf")) for t in range(97)))
    with pytest.raises(EngineError):
        engine.forward([Entry(a, [9, 9, 9], sample=GREEDY), Entry(b, [8] * 80, sample=nothing_left)])
    assert (engine.length(a), engine.length(b), engine.stats.pages_used) == (70, 70, pages)
    assert (continuation(engine, a, 3), continuation(engine, b, 4)) == before


def test_cells_exhausted_counts_pages(engine: GgmlEngine) -> None:
    with pytest.raises(CellsExhausted) as raised:
        engine.forward([Entry(engine.new(), [1] * count) for count in (140, 140, 1)])
    assert (raised.value.needed, raised.value.free) == (7, 6)


def test_an_empty_batch_gives_nothing(engine: GgmlEngine) -> None:
    assert engine.forward([]) == []
    assert engine.stats.forwards == 0


def test_outputs_are_what_was_asked_for(engine: GgmlEngine) -> None:
    a, b, c, d = (engine.new() for _ in range(4))
    sampling = Sampling(temperature=0.0, logprobs=2)
    outputs = engine.forward(
        [
            Entry(a, [1, 2, 3], logits="all"),
            Entry(b, [1, 2, 3], sample=sampling),
            Entry(c, [1, 2, 3], sample=GREEDY, logits="last"),
            Entry(d, [1, 2, 3]),
        ]
    )
    assert outputs[0].token is None
    assert outputs[0].logits.shape == (3, 97)
    assert outputs[0].logits.dtype == np.float32
    best = int(outputs[0].logits[2].argmax())
    assert outputs[1].token == outputs[2].token == best
    assert outputs[1].logits is None
    assert outputs[1].logprobs is not None
    row = outputs[0].logits[2].astype(np.float64)
    shares = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert outputs[1].logprobs.chosen == pytest.approx(shares[best], abs=1e-5)
    assert [token for token, _ in outputs[1].logprobs.top] == list(np.argsort(-row, kind="stable")[:2])
    assert outputs[2].logprobs is None
    assert np.array_equal(outputs[2].logits[0], outputs[0].logits[2])
    assert (outputs[3].token, outputs[3].logprobs, outputs[3].logits) == (None, None, None)


def test_abutting_entries_sample_at_their_own_ends(engine: GgmlEngine) -> None:
    """The first entry's penalties and position are those of its own end, as if it had come in a batch of its own."""
    sampling = Sampling(temperature=1.0, seed=3, repetition_penalty=1.5, penalty_window=-1)
    prompts = [[4, 8, 15], [16, 23, 42, 4], [8]]
    apart = engine.new()
    expected = [engine.forward([Entry(apart, prompt, sample=sampling)])[0].token for prompt in prompts]
    joined = engine.new()
    outputs = engine.forward([Entry(joined, prompt, sample=sampling) for prompt in prompts])
    assert [output.token for output in outputs] == expected


def test_tokens_may_come_as_any_sequence_of_integers(engine: GgmlEngine) -> None:
    rows = [
        engine.forward([Entry(s, tokens, logits="last")])[0].logits
        for s, tokens in ((engine.new(), [1, 2]), (engine.new(), (1, 2)), (engine.new(), np.array([1, 2], np.int32)))
    ]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_memory_follows_the_pages_in_use(tmp_path: Path) -> None:
    wide = TinyLlama(layers=4, heads=8, kv_heads=8, head_size=128, context=4096)  # a page is 1 MiB, a slab 16
    path = wide.write(tmp_path / "m.gguf")
    engine = load(EngineSettings(model=path, kv_bytes=1 << 30, threads=1, max_batch_tokens=1024))
    assert engine.geometry.page_bytes == 1 << 20

    def allocated() -> float:
        return engine.stats.extra["kv_allocated_bytes"]

    assert allocated() == 0
    first = engine.new()
    engine.forward([Entry(first, [1] * 1000)])  # 16 pages
    assert allocated() == 16 << 20
    sequences = [engine.new() for _ in range(4)]
    for sequence in sequences:
        engine.forward([Entry(sequence, [2] * 1000)])
    assert allocated() == 80 << 20
    before = engine.forward([Entry(first, [3], logits="last")])[0].logits
    for sequence in sequences:
        engine.remove(sequence)
    assert allocated() == 32 << 20  # one slab is kept to grow into
    engine.rewind(first, 1000)
    assert np.array_equal(engine.forward([Entry(first, [3], logits="last")])[0].logits, before)


def test_the_gil_is_released_during_a_forward(model_path: Path) -> None:
    """Another thread counts while one forward runs."""
    engine = load(EngineSettings(model=model_path, threads=1))
    running, counted = threading.Event(), [0]

    def count() -> None:
        running.set()
        while running.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    sequence = engine.new()
    thread.start()
    running.wait()
    start = counted[0]
    engine.forward([Entry(sequence, [1] * 200)])
    during = counted[0] - start
    running.clear()
    thread.join()
    assert during > 10000


def test_a_row_that_cannot_be_sampled_fails_the_whole_batch_on_any_thread(tmp_path: Path) -> None:
    engine = load(EngineSettings(model=TINY.write(tmp_path / "m.gguf"), threads=2))
    nothing_left = Sampling(logit_bias=tuple((token, float("-inf")) for token in range(97)))
    sequences = [engine.new() for _ in range(12)]
    good = [Entry(sequence, [1, 2], sample=Sampling(seed=sequence)) for sequence in sequences]
    for culprit in range(12):
        batch = [
            Entry(e.sequence, e.tokens, sample=nothing_left if i == culprit else e.sample) for i, e in enumerate(good)
        ]
        with pytest.raises(BatchError, match="excludes every token"):
            engine.forward(batch)
        assert [engine.length(sequence) for sequence in sequences] == [0] * 12
    together = [output.token for output in engine.forward(good)]
    for sequence in sequences:
        engine.rewind(sequence, 0)
    assert [engine.forward([entry])[0].token for entry in good] == together
