"""What engines that hold many sequences promise: sessions do not touch each other, and clones share without copying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.driving import GREEDY, Load, Row, alone, feed, generate, prompt, same_bits
from tokenloom.native_ext.engine import (
    BatchError,
    CellsExhausted,
    Engine,
    Entry,
    Sampling,
    SequencesExhausted,
)

WIDE = 100  # a prompt wider than the batch's token budget, and than a page


def test_sequence_numbers_run_out_and_are_reused(many: Engine) -> None:
    limit = many.geometry.max_sequences
    sequences = [many.new() for _ in range(limit)]
    assert len(set(sequences)) == limit
    with pytest.raises(SequencesExhausted):
        many.new()
    with pytest.raises(SequencesExhausted):
        many.clone(sequences[0])
    many.remove(sequences[2])
    assert many.new() == sequences[2]
    assert many.length(sequences[2]) == 0


def test_clone_rules(many: Engine) -> None:
    source = many.new()
    feed(many, source, prompt(70))
    used = many.stats.pages_used
    clone, part, empty = many.clone(source), many.clone(source, 65), many.clone(source, 0)
    assert [many.length(sequence) for sequence in (source, clone, part, empty)] == [70, 70, 65, 0]
    assert many.stats.pages_used == used == 2
    assert many.pages_held(source) == 0
    for upto in (-1, 71, 10**6):
        with pytest.raises(BatchError, match=str(upto)):
            many.clone(source, upto)
    with pytest.raises(BatchError):
        many.clone(source + 5)
    # A copy for each writer but one; the full page stays shared.
    assert many.pages_needed({source: 1, clone: 1}) == 2
    assert many.pages_needed({source: 1, clone: 1, part: 1}) == 2
    many.forward([Entry(sequence, [50 + sequence]) for sequence in (source, clone, part)])
    assert many.stats.pages_used == 4
    assert [many.pages_held(sequence) for sequence in (source, clone, part)] == [1, 1, 1]
    many.remove(source)
    assert many.stats.pages_used == 3
    assert many.length(clone) == 71


def test_sessions_decoded_together_get_the_tokens_they_get_alone(many: Engine) -> None:
    lengths = [1, 5, 9, 14]
    settings = [GREEDY, Sampling(temperature=1.2, seed=3), Sampling(top_k=40, seed=4), GREEDY]
    expected = [
        alone(many, prompt(length, length), 5, sampling) for length, sampling in zip(lengths, settings, strict=True)
    ]
    entries = {
        many.new(): Entry(-1, prompt(length, length), sampling, "last")
        for length, sampling in zip(lengths, settings, strict=True)
    }
    generated: dict[int, list[int]] = {sequence: [] for sequence in entries}
    rows: dict[int, Row] = {}
    for step in range(5):
        order = sorted(entries, reverse=step % 2 == 1)
        outputs = many.forward([replace(entries[sequence], sequence=sequence) for sequence in order])
        for sequence, output in zip(order, outputs, strict=True):
            assert output.token is not None
            generated[sequence].append(output.token)
            rows[sequence] = output.logits[0]
            entries[sequence] = replace(entries[sequence], tokens=[output.token])
    assert list(generated.values()) == [tokens for tokens, _ in expected]
    assert all(
        same_bits(row, other)
        for row, (_, other) in zip([rows[sequence] for sequence in entries], expected, strict=True)
    )


def test_a_decode_beside_anothers_wide_prompt_matches_both_alone(many: Engine) -> None:
    decoding, wide = prompt(7, 1), prompt(WIDE, 2)
    expected_decoding, expected_wide = alone(many, decoding, 5), alone(many, wide, 2)
    first, second = many.new(), many.new()
    token, _ = feed(many, first, decoding, GREEDY)
    generated = [token]
    size = many.geometry.max_batch_tokens - 1
    chunks = [wide[at : at + size] for at in range(0, WIDE, size)]
    for chunk in chunks:
        assert token is not None
        ones, prefill = many.forward([Entry(first, [token], GREEDY, "last"), Entry(second, chunk, GREEDY)])
        token = ones.token
        generated.append(token)
    assert generated == expected_decoding[0][: len(chunks) + 1]
    assert prefill.token == expected_wide[0][0]
    assert token is not None
    assert prefill.token is not None
    both = many.forward([Entry(second, [prefill.token], GREEDY, "last"), Entry(first, [token], GREEDY, "last")])
    assert [both[0].token, both[1].token] == [expected_wide[0][1], expected_decoding[0][4]]
    assert same_bits(both[0].logits[0], expected_wide[1])
    assert same_bits(both[1].logits[0], expected_decoding[1])


@pytest.mark.parametrize("length", [6, 64, WIDE])
def test_a_clone_continues_as_its_source(many: Engine, length: int) -> None:
    """Also after a prompt wider than the batch's budget, which fills pages; each is independent from then on."""
    source = many.new()
    feed(many, source, prompt(length))
    clone, other = many.clone(source), many.clone(source)
    continued, row = generate(many, source, [44], 3)
    assert [many.length(sequence) for sequence in (clone, other)] == [length, length]
    feed(many, other, [55, 66])
    again, other_row = generate(many, clone, [44], 3)
    assert again == continued
    assert same_bits(other_row, row)
    many.rewind(other, length)
    assert generate(many, other, [44], 3)[0] == continued
    many.remove(source)
    many.rewind(clone, length - 1)
    assert generate(many, clone, [prompt(length)[-1], 44], 3)[0] == continued


def test_clones_that_write_in_one_batch_do_not_touch_each_other(many: Engine) -> None:
    source = many.new()
    feed(many, source, prompt(20))
    sequences = [source, many.clone(source), many.clone(source, 12), many.clone(source, 17)]
    lengths = [many.length(sequence) for sequence in sequences]
    entries = [Entry(sequence, [60 + sequence, 61], logits="last") for sequence in sequences]
    rows = [output.logits[0] for output in many.forward(entries)]
    for sequence in sequences:
        many.remove(sequence)
    for entry, length, row in zip(entries, lengths, rows, strict=True):
        sequence = many.new()
        assert same_bits(feed(many, sequence, prompt(20)[:length] + list(entry.tokens))[1], row)
        many.remove(sequence)


@pytest.mark.parametrize("name", ["ggml", "fake"])
def test_a_batch_the_cells_refuse_changes_no_sequence(name: str, load: Load) -> None:
    engine = load(name, pages=3)
    first, second = engine.new(), engine.new()
    lengths = {first: 20, second: 30}
    for sequence, length in lengths.items():
        feed(engine, sequence, prompt(length, sequence))
    decodes = [Entry(first, [70, 71], logits="last"), Entry(second, [72], logits="last")]
    expected = [output.logits[0] for output in engine.forward(decodes)]
    for sequence, length in lengths.items():
        engine.rewind(sequence, length)
    clone, empty = engine.clone(second), engine.new()
    # Of three pages two are held; the batch needs one for the new sequence and one for a copy.
    batch = [*decodes[:1], Entry(clone, [73], GREEDY), Entry(empty, [74])]
    for _ in range(2):
        with pytest.raises(CellsExhausted) as caught:
            engine.forward(batch)
        assert (caught.value.needed, caught.value.free) == (2, 1)
        assert [engine.length(sequence) for sequence in (first, second, clone, empty)] == [20, 30, 30, 0]
        assert (engine.stats.pages_used, engine.stats.pages_free) == (2, 1)
    engine.remove(clone)
    rows = [output.logits[0] for output in engine.forward(decodes)]
    assert all(same_bits(row, other) for row, other in zip(rows, expected, strict=True))
    engine.forward([Entry(empty, [74])])
    engine.close()
