"""What every engine promises, whatever runs the model: ggml, the fake, and the single-sequence adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.driving import GREEDY, Load, alone, feed, generate, prompt, same_bits
from tokenloom.native_ext.engine import (
    BatchError,
    CellsExhausted,
    ContextFull,
    Engine,
    EngineError,
    Entry,
    Sampling,
)

WIDE = 100  # a prompt wider than the batch's token budget, and than a page


def test_geometry_is_honest(engine: Engine) -> None:
    geometry = engine.geometry
    assert isinstance(engine, Engine)
    assert geometry.vocabulary == len(engine.metadata["tokenizer.ggml.tokens"])
    assert geometry.context == engine.metadata[f"{geometry.architecture}.context_length"]
    assert geometry.heads % geometry.kv_heads == 0
    heads = geometry.layers * geometry.kv_heads * 2 * geometry.page_size  # of keys and of values, of all positions
    assert geometry.page_bytes in (heads * geometry.head_size * 2, heads * (geometry.head_size + 2))
    assert (geometry.max_pages, geometry.max_batch_tokens) == (8, 40)
    assert len(bytes.fromhex(geometry.fingerprint)) >= 16


def test_a_new_sequence_is_empty_and_grows_by_what_is_appended(engine: Engine) -> None:
    sequence = engine.new()
    assert engine.length(sequence) == 0
    assert engine.stats.sequences == 1
    before = engine.stats
    engine.forward([Entry(sequence, prompt(3))])
    engine.forward([Entry(sequence, prompt(2), GREEDY)])
    assert engine.length(sequence) == 5
    after = engine.stats
    assert (after.forwards - before.forwards, after.tokens - before.tokens) == (2, 5)
    assert (after.pages_used, engine.pages_held(sequence)) == (1, 1)
    engine.remove(sequence)
    assert engine.stats.pages_used == 0
    with pytest.raises(BatchError):
        engine.length(sequence)


def test_every_entry_returns_what_it_asked_for(engine: Engine) -> None:
    vocabulary = engine.geometry.vocabulary
    sequence = engine.new()
    nothing, sampled, last, every = engine.forward(
        [
            Entry(sequence, prompt(2)),
            Entry(sequence, prompt(3), GREEDY),
            Entry(sequence, prompt(2), logits="last"),
            Entry(sequence, prompt(3), replace(GREEDY, logprobs=2), "all"),
        ]
    )
    assert (nothing.token, nothing.logits, nothing.logprobs) == (None, None, None)
    assert sampled.token is not None
    assert sampled.logits is None
    assert last.token is None
    assert (last.logits.dtype, last.logits.shape) == (np.float32, (1, vocabulary))
    assert every.logits.shape == (3, vocabulary)
    assert every.token == int(np.argmax(every.logits[-1]))
    assert every.logprobs is not None
    assert len(every.logprobs.top) == 2


def test_greedy_and_logprobs_follow_the_row(engine: Engine) -> None:
    sequence = engine.new()
    (output,) = engine.forward([Entry(sequence, prompt(4), replace(GREEDY, logprobs=4), "last")])
    row = output.logits[0].astype(np.float64)
    exact = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert output.token == int(np.argmax(row))
    assert output.logprobs is not None
    assert output.logprobs.chosen == pytest.approx(exact[output.token], abs=1e-5)
    best = np.argsort(-row, kind="stable")[:4]
    assert [token for token, _ in output.logprobs.top] == best.tolist()
    assert [value for _, value in output.logprobs.top] == pytest.approx(exact[best], abs=1e-5)


def test_sampling_settings_act(engine: Engine) -> None:
    sequence = engine.new()
    (output,) = engine.forward([Entry(sequence, prompt(5), GREEDY, "last")])
    second, best = (int(token) for token in np.argsort(output.logits[0], kind="stable")[-2:])
    assert output.token == best

    def again(sampling: Sampling) -> int | None:
        engine.rewind(sequence, 4)
        return engine.forward([Entry(sequence, prompt(5)[4:], sampling)])[0].token

    assert again(replace(GREEDY, logit_bias=((best, -float("inf")),))) == second
    assert again(replace(GREEDY, logit_bias=((7, 1000.0),))) == 7
    assert again(Sampling(top_k=1, temperature=2.0)) == best
    assert again(Sampling(top_p=1e-9)) == best
    assert again(replace(GREEDY, presence_penalty=1000.0, logit_bias=((prompt(5)[0], 900.0),))) == best


def test_the_drawn_token_depends_on_seed_and_position_alone(engine: Engine) -> None:
    hot = Sampling(temperature=1.5, seed=11)
    first, _ = alone(engine, prompt(5), 4, hot)
    sequence = engine.new()
    assert generate(engine, sequence, prompt(5), 4, hot)[0] == first
    engine.rewind(sequence, 4)
    assert generate(engine, sequence, prompt(5)[4:], 4, hot)[0] == first
    engine.rewind(sequence, 5)
    assert generate(engine, sequence, first[:2], 2, hot)[0] == first[2:]
    engine.rewind(sequence, 4)
    assert generate(engine, sequence, prompt(5)[4:], 4, replace(hot, seed=12))[0] != first


def test_chunks_and_abutting_entries_give_the_same_bits_as_one_entry(engine: Engine) -> None:
    tokens = prompt(24)
    sequence = engine.new()
    (whole,) = engine.forward([Entry(sequence, tokens, logits="all")])
    engine.rewind(sequence, 0)
    parts = engine.forward(
        [Entry(sequence, tokens[:1], logits="all"), Entry(sequence, tokens[1:14], logits="all"),
         Entry(sequence, tokens[14:], GREEDY, logits="all")]
    )  # fmt: skip
    assert same_bits(np.concatenate([part.logits for part in parts]), whole.logits)
    assert parts[-1].token == int(np.argmax(whole.logits[-1]))
    engine.rewind(sequence, 0)
    rows = [engine.forward([Entry(sequence, tokens[at : at + 6], logits="all")])[0].logits for at in range(0, 24, 6)]
    assert same_bits(np.concatenate(rows), whole.logits)
    assert engine.length(sequence) == 24


def test_rewind_into_history_and_replay_gives_the_same_bits(engine: Engine) -> None:
    sequence = engine.new()
    generated, row = generate(engine, sequence, prompt(WIDE), 3)
    for to in (99, 64, 63):
        engine.rewind(sequence, to)
        assert engine.length(sequence) == to
        again, other_row = generate(engine, sequence, prompt(WIDE)[to:], 3)
        assert again == generated
        assert same_bits(other_row, row)


def test_after_a_rewind_another_continuation_forgets_the_first(engine: Engine) -> None:
    sequence = engine.new()
    feed(engine, sequence, prompt(10) + prompt(20, 1))
    engine.rewind(sequence, 10)
    engine.rewind(sequence, 10)
    continued = generate(engine, sequence, prompt(9, 2), 3)
    engine.remove(sequence)
    expected = alone(engine, prompt(10) + prompt(9, 2), 3)
    assert continued[0] == expected[0]
    assert same_bits(continued[1], expected[1])


BAD_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": []}, "token"),
    "token beyond the vocabulary": ({"tokens": [5, 10**6]}, "1000000"),
    "negative token": ({"tokens": [-1]}, "-1"),
    "token beyond 64 bits": ({"tokens": [2**70]}, str(2**70)),
    "token that is no integer": ({"tokens": ["a"]}, "'a'"),
    "more tokens than the budget": ({"tokens": [5] * 41}, "40"),
    "unknown sequence": ({"sequence": 5}, "5"),
    "negative sequence": ({"sequence": -1}, "-1"),
    "temperature below 0": ({"sample": Sampling(temperature=-1.0)}, "temperature is -1"),
    "bias outside the vocabulary": ({"sample": Sampling(logit_bias=((10**6, 1.0),))}, "logit_bias"),
    "seed beyond 64 bits": ({"sample": Sampling(seed=2**64)}, "seed is 18446744073709551616"),
    "too many logprobs": ({"sample": Sampling(logprobs=10**6)}, "logprobs is 1000000"),
    "unknown wish for logits": ({"logits": "some"}, "logits is 'some'"),
}


def test_a_malformed_entry_fails_the_batch_and_changes_nothing(engine: Engine) -> None:
    sequence = engine.new()
    feed(engine, sequence, prompt(6))
    before = engine.stats
    for name, (changes, message) in BAD_ENTRIES.items():
        bad = replace(Entry(sequence, [9]), **changes)
        for batch in ([bad], [Entry(sequence, prompt(3, 1), GREEDY), bad]):
            with pytest.raises(BatchError, match=message) as caught:
                engine.forward(batch)
            assert isinstance(caught.value, ValueError), name
        assert engine.length(sequence) == 6, name
    after = engine.stats
    assert (after.pages_used, after.forwards, after.tokens) == (before.pages_used, before.forwards, before.tokens)
    continued = generate(engine, sequence, prompt(3, 1), 2)
    engine.remove(sequence)
    expected = alone(engine, prompt(6) + prompt(3, 1), 2)
    assert continued[0] == expected[0]
    assert same_bits(continued[1], expected[1])


def test_calls_about_unknown_sequences_and_lengths_are_refused(engine: Engine) -> None:
    sequence = engine.new()
    engine.forward([Entry(sequence, prompt(3))])
    for unknown in (sequence + 1, -1, 10**6):
        for call in (engine.remove, engine.length, engine.pages_held):
            with pytest.raises(BatchError, match=str(unknown)):
                call(unknown)
        with pytest.raises(BatchError, match=str(unknown)):
            engine.rewind(unknown, 0)
        with pytest.raises(BatchError, match=str(unknown)):
            engine.pages_needed({unknown: 1})
    for to in (-1, 4, 10**6):
        with pytest.raises(BatchError, match=str(to)):
            engine.rewind(sequence, to)
    assert engine.length(sequence) == 3


@pytest.mark.parametrize("name", ["ggml", "single-ggml", "fake"])
def test_an_entry_beyond_the_context_is_refused_before_any_work(name: str, load: Load) -> None:
    engine = load(name, max_batch_tokens=1 << 14)
    context = engine.geometry.context
    sequence = engine.new()
    for batch in ([Entry(sequence, [30] * (context + 1))], [Entry(sequence, [30] * context), Entry(sequence, [30])]):
        with pytest.raises(ContextFull, match=str(context)):
            engine.forward(batch)
        assert (engine.length(sequence), engine.stats.pages_used) == (0, 0)
    with pytest.raises(CellsExhausted):  # it fits the context, and only then are cells counted
        engine.forward([Entry(sequence, [30] * context)])
    engine.close()


@pytest.mark.parametrize("name", ["ggml", "single-ggml", "fake"])
def test_a_closed_engine_refuses_every_call(name: str, load: Load) -> None:
    engine = load(name)
    sequence = engine.new()
    engine.close()
    engine.close()
    calls: list[Callable[[], object]] = [
        engine.new,
        lambda: engine.remove(sequence),
        lambda: engine.rewind(sequence, 0),
        lambda: engine.length(sequence),
        lambda: engine.pages_needed({sequence: 1}),
        lambda: engine.pages_held(sequence),
        lambda: engine.forward([Entry(sequence, [5])]),
        lambda: engine.stats,
    ]
    for call in calls:
        with pytest.raises(EngineError, match="closed"):
            call()


def test_pages_needed_is_what_a_batch_takes(engine: Engine) -> None:
    sequence = engine.new()
    for growth in (1, 30, 35):
        needed, used = engine.pages_needed({sequence: growth}), engine.stats.pages_used
        engine.forward([Entry(sequence, prompt(growth))])
        assert engine.stats.pages_used == used + needed
    assert engine.pages_needed({sequence: 64 - 2}) == 0
    assert engine.pages_needed({sequence: 64 - 1}) == 1
    assert engine.pages_needed({}) == 0
    assert engine.pages_held(sequence) == 2
