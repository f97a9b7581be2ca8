"""What the single-sequence adapter promises, over the real engine and over the fake."""

from __future__ import annotations

import pytest

from engine.driving import GREEDY, Load, feed, generate, prompt, same_bits
from tokenloom.native_ext.engine import (
    BatchError,
    CellsExhausted,
    CloneRefused,
    Engine,
    Entry,
    SequencesExhausted,
)


def test_the_adapter_holds_one_sequence_at_a_time(single: Engine) -> None:
    assert single.geometry.max_sequences == 1
    sequence = single.new()
    with pytest.raises(SequencesExhausted, match="one sequence at a time"):
        single.new()
    feed(single, sequence, prompt(3))
    for upto in (None, 0, 2):
        with pytest.raises(CloneRefused, match="one sequence at a time"):
            single.clone(sequence, upto)
    assert (single.length(sequence), single.stats.sequences) == (3, 1)


def test_closing_and_reopening_the_adapters_sequence_starts_empty(single: Engine) -> None:
    sequence = single.new()
    first, row = generate(single, sequence, prompt(8), 3)
    single.remove(sequence)
    again = single.new()
    assert (single.length(again), single.stats.pages_used) == (0, 0)
    generated, other_row = generate(single, again, prompt(8), 3)
    assert generated == first
    assert same_bits(other_row, row)
    with pytest.raises(BatchError):
        single.remove(again + 1)
    with pytest.raises(SequencesExhausted):
        single.new()


def test_the_adapter_takes_abutting_chunks_after_a_rewind_into_committed_history(single: Engine) -> None:
    sequence = single.new()
    generated, row = generate(single, sequence, prompt(30), 3)
    single.rewind(sequence, 11)
    tokens = prompt(30)[11:]
    outputs = single.forward([Entry(sequence, tokens[:4]), Entry(sequence, tokens[4:], GREEDY)])
    assert outputs[1].token == generated[0]
    outputs = single.forward([Entry(sequence, generated[:1], GREEDY), Entry(sequence, generated[1:2], GREEDY, "last")])
    assert [output.token for output in outputs] == generated[1:]
    assert same_bits(outputs[1].logits[0], row)


@pytest.mark.parametrize("name", ["single-ggml", "single-fake"])
def test_the_adapters_sequence_refused_by_the_cells_continues_as_it_would_have(name: str, load: Load) -> None:
    engine = load(name, pages=1)
    sequence = engine.new()
    feed(engine, sequence, prompt(33))
    expected = feed(engine, sequence, [70, 71])[1]
    engine.rewind(sequence, 33)
    assert engine.pages_needed({sequence: 32}) == 1
    with pytest.raises(CellsExhausted, match="needs 1 pages of cells and 0 are free"):
        engine.forward([Entry(sequence, [70, 71], GREEDY), Entry(sequence, prompt(30))])
    assert engine.length(sequence) == 33
    assert same_bits(feed(engine, sequence, [70, 71])[1], expected)
    engine.close()
