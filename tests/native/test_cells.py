"""The pages of cells: sharing, copy on first write, transactional appends, and refusals that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.native_ext._core import Cells
from tokenloom.native_ext.engine import BatchError, CellsExhausted, ContextFull, SequencesExhausted

Batch = list[tuple[int, list[int]]]


def append(cells: Cells, *batch: tuple[int, list[int]]) -> list[tuple[int, int, int]]:
    """Commit one batch; return its copies."""
    reservation = cells.reserve(list(batch))
    copies = list(reservation.copies)
    reservation.commit()
    cells.check()
    return copies


def state(cells: Cells) -> dict[str, Any]:
    return {
        "sequences": {number: (cells.tokens(number), cells.pages(number)) for number in cells.sequences()},
        "free": cells.pages_free,
        "end": cells.pages_end,
        "owners": [cells.owners(page) for page in range(cells.max_pages)],
    }


def filled(cells: Cells, length: int, start: int = 0) -> int:
    sequence = cells.create()
    append(cells, (sequence, list(range(start, start + length))))
    return sequence


def test_pages_hold_64_positions_unless_told_otherwise() -> None:
    assert Cells(4, 4, 100).page_size == 64


def test_slots_say_where_every_token_goes() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    first, second = cells.create(), cells.create()
    reservation = cells.reserve([(first, [10, 11, 12, 13, 14]), (second, [20]), (first, [15])])
    assert reservation.slots == [
        (first, 0, 0, 0), (first, 1, 0, 1), (first, 2, 0, 2), (first, 3, 0, 3), (first, 4, 1, 0),
        (second, 0, 2, 0),
        (first, 5, 1, 1),
    ]  # fmt: skip
    assert (reservation.copies, reservation.taken, reservation.pages_end) == ([], 3, 3)
    reservation.commit()
    assert cells.tokens(first) == [10, 11, 12, 13, 14, 15]
    assert (cells.pages(first), cells.pages(second)) == ([0, 1], [2])


def test_numbers_are_reused_lowest_first() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    sequences = [filled(cells, 4) for _ in range(4)]
    cells.remove(sequences[2])
    cells.remove(sequences[0])
    assert cells.pages_end == 4
    fresh = filled(cells, 8)
    assert fresh == sequences[0]
    assert cells.pages(fresh) == [0, 2]


def test_storage_shrinks_with_the_highest_page_in_use() -> None:
    cells = Cells(max_pages=200, max_sequences=4, context=1000, page_size=4)
    first, second = filled(cells, 4), filled(cells, 600)
    assert cells.pages_end == 151
    cells.rewind(second, 5)
    assert cells.pages_end == 3
    cells.remove(second)
    assert (cells.pages_end, cells.pages_free) == (1, 199)
    cells.remove(first)
    assert cells.pages_end == 0


def test_clone_shares_pages_and_copies_nothing() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 10)
    clone = cells.clone(source)
    assert cells.pages(clone) == cells.pages(source)
    assert cells.pages_used == 3
    part = cells.clone(source, 5)
    assert (cells.tokens(part), cells.pages(part)) == ([0, 1, 2, 3, 4], cells.pages(source)[:2])
    assert cells.pages(cells.clone(source, 0)) == []
    cells.check()


def test_first_write_into_a_shared_partly_filled_page_copies_its_filled_part() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 6)
    clone = cells.clone(source)
    assert append(cells, (clone, [99])) == [(1, 2, 2)]
    assert append(cells, (source, [6])) == []
    assert (cells.pages(source), cells.pages(clone)) == ([0, 1], [0, 2])
    assert append(cells, (clone, [98])) == []


def test_a_full_shared_page_is_never_copied() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 8)
    clone = cells.clone(source)
    assert append(cells, (source, [1]), (clone, [2])) == []
    assert cells.pages_used == 4


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_when_every_owner_writes_in_one_batch_one_keeps_the_original(owners: int) -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=100, page_size=4)
    sequences = [filled(cells, 6)]
    sequences += [cells.clone(sequences[0]) for _ in range(owners - 1)]
    assert cells.pages_needed(dict.fromkeys(sequences, 1)) == owners - 1
    copies = append(cells, *[(sequence, [100 + sequence]) for sequence in sequences])
    assert [(source, positions) for source, _, positions in copies] == [(1, 2)] * (owners - 1)
    assert sum(cells.pages(sequence)[1] == 1 for sequence in sequences) == 1


def test_the_original_stays_with_who_fills_most_of_it() -> None:
    """Were the shorter one to keep it, its writes would hit cells that a rollback of the longer one needs."""
    cells = Cells(max_pages=16, max_sequences=8, context=100, page_size=4)
    shorter = filled(cells, 7)
    longer = cells.clone(shorter)
    cells.rewind(shorter, 5)
    assert append(cells, (shorter, [1]), (longer, [2])) == [(1, 2, 1)]
    assert (cells.pages(shorter), cells.pages(longer)) == ([0, 2], [0, 1])


def test_an_owner_that_does_not_write_keeps_the_original_from_all_who_do() -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=100, page_size=4)
    idle = filled(cells, 6)
    writers = [cells.clone(idle), cells.clone(idle)]
    assert append(cells, *[(writer, [1]) for writer in writers]) == [(1, 2, 2), (1, 3, 2)]
    assert cells.pages(idle) == [0, 1]


def test_rewinding_into_a_shared_page_copies_nothing_until_the_next_write() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 8)
    clone = cells.clone(source)
    cells.rewind(clone, 5)
    assert cells.pages_used == 2
    cells.check()
    assert cells.pages_needed({clone: 1}) == 1
    assert append(cells, (clone, [77])) == [(1, 2, 1)]
    assert cells.tokens(source) == list(range(8))


def test_rewind_frees_the_pages_behind_it() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    sequence = filled(cells, 16)
    cells.rewind(sequence, 8)
    assert (cells.pages(sequence), cells.pages_free) == ([0, 1], 6)
    cells.rewind(sequence, 0)
    assert (cells.pages(sequence), cells.tokens(sequence), cells.pages_free) == ([], [], 8)


def test_removal_frees_only_pages_without_another_owner() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 8)
    clone = cells.clone(source)
    append(cells, (clone, [1]))
    assert (cells.pages_held(source), cells.pages_held(clone)) == (0, 1)
    cells.remove(source)
    assert (cells.pages_used, cells.pages_held(clone)) == (3, 3)
    cells.remove(clone)
    assert cells.pages_used == 0


def test_rollback_restores_every_sequence_and_page() -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=100, page_size=4)
    source = filled(cells, 6)
    clone, other = cells.clone(source), filled(cells, 3)
    before = state(cells)
    batch: Batch = [(source, [1] * 7), (clone, [2] * 3), (other, [3]), (source, [4])]
    reservation = cells.reserve(batch)
    assert cells.length(source) == 14
    assert len(reservation.copies) == 1
    reservation.rollback()
    cells.check()
    assert state(cells) == before
    assert not reservation.open


def test_a_forgotten_reservation_rolls_back() -> None:
    cells = Cells(max_pages=4, max_sequences=2, context=100, page_size=4)
    sequence = filled(cells, 3)
    before = state(cells)
    reservation = cells.reserve([(sequence, [1, 2, 3])])
    del reservation
    assert state(cells) == before
    assert cells.counters["rollbacks"] == 1


def test_a_batch_without_enough_pages_says_how_many_and_changes_nothing() -> None:
    cells = Cells(max_pages=4, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 6)
    clone = cells.clone(source)
    before = state(cells)
    with pytest.raises(CellsExhausted, match="needs 4 pages of cells and 2 are free") as caught:
        cells.reserve([(clone, [1] * 3), (source, [1] * 7)])
    assert (caught.value.needed, caught.value.free) == (4, 2)
    assert state(cells) == before
    assert cells.counters["refusals"] == 1
    append(cells, (clone, [1]), (source, [1] * 3))


def test_pages_needed_agrees_with_what_a_reservation_takes() -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=100, page_size=4)
    source = filled(cells, 6)
    clone, third = cells.clone(source), cells.clone(source, 5)
    for growth in ({source: 1}, {source: 1, clone: 9}, {source: 2, clone: 3, third: 4}, {source: 0, clone: 1}, {}):
        needed = cells.pages_needed(growth)
        reservation = cells.reserve([(sequence, [0] * tokens) for sequence, tokens in growth.items() if tokens])
        assert reservation.taken == needed
        reservation.rollback()


def test_the_context_limit_is_inclusive_and_counts_abutting_appends() -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=10, page_size=4)
    sequence = filled(cells, 6)
    before = state(cells)
    with pytest.raises(ContextFull, match="from 6 to 11 tokens; the context is 10"):
        cells.reserve([(sequence, [1, 2]), (sequence, [3, 4, 5])])
    assert state(cells) == before
    append(cells, (sequence, [1, 2]), (sequence, [3, 4]))


def test_every_append_is_checked_before_any_is_placed() -> None:
    cells = Cells(max_pages=16, max_sequences=8, context=10, page_size=4)
    sequence = filled(cells, 3)
    before = state(cells)
    for bad, message in (
        ((5, [1]), "sequence 5 does not exist"),
        ((-1, [1]), "sequence -1"),
        ((sequence, []), "no tokens"),
    ):
        with pytest.raises(BatchError, match=message):
            cells.reserve([(sequence, [1]), bad])
        assert state(cells) == before


@pytest.mark.parametrize("call", ["remove", "clone", "length", "tokens", "pages", "pages_held"])
def test_an_unknown_sequence_is_refused_everywhere(call: str) -> None:
    cells = Cells(max_pages=4, max_sequences=4, context=10)
    cells.remove(cells.create())
    for sequence in (0, -1, 3, 1000):
        with pytest.raises(BatchError, match=f"sequence {sequence} does not exist"):
            getattr(cells, call)(sequence)
    with pytest.raises(BatchError, match="sequence 0 does not exist"):
        cells.rewind(0, 0)
    with pytest.raises(BatchError, match="sequence 0 does not exist"):
        cells.pages_needed({0: 1})


def test_lengths_out_of_range_are_refused() -> None:
    cells = Cells(max_pages=4, max_sequences=4, context=10, page_size=4)
    sequence = filled(cells, 5)
    for length in (-1, 6, 2**40):
        with pytest.raises(BatchError, match=f"rewind to is {length}; sequence 0 has 5 tokens"):
            cells.rewind(sequence, length)
        with pytest.raises(BatchError, match=f"clone upto is {length}"):
            cells.clone(sequence, length)
    with pytest.raises(BatchError, match="growth of sequence 0 is -1"):
        cells.pages_needed({sequence: -1})


def test_sequences_run_out() -> None:
    cells = Cells(max_pages=4, max_sequences=2, context=10)
    sequence = cells.create()
    cells.clone(sequence)
    with pytest.raises(SequencesExhausted, match="all 2 sequences"):
        cells.create()
    with pytest.raises(SequencesExhausted, match="all 2 sequences"):
        cells.clone(sequence)
    cells.check()


def test_nothing_changes_while_a_reservation_is_open() -> None:
    cells = Cells(max_pages=4, max_sequences=4, context=10, page_size=4)
    sequence = filled(cells, 2)
    reservation = cells.reserve([(sequence, [1])])
    for change in (
        cells.create,
        lambda: cells.remove(sequence),
        lambda: cells.clone(sequence),
        lambda: cells.rewind(sequence, 0),
        lambda: cells.reserve([(sequence, [1])]),
    ):
        with pytest.raises(RuntimeError, match="while a reservation is open"):
            change()
    reservation.commit()
    with pytest.raises(RuntimeError, match="already committed"):
        reservation.commit()
    reservation.rollback()
    assert cells.length(sequence) == 3


@pytest.mark.parametrize("field", ["max_pages", "max_sequences", "context", "page_size"])
def test_sizes_out_of_range_are_refused_by_name(field: str) -> None:
    sizes = {"max_pages": 1, "max_sequences": 1, "context": 1, "page_size": 1} | {field: -1}
    with pytest.raises(ValueError, match=f"{field} is -1"):
        Cells(**sizes)


def test_counters_count_what_was_committed() -> None:
    cells = Cells(max_pages=8, max_sequences=4, context=100, page_size=4)
    source = filled(cells, 6)
    clone = cells.clone(source)
    cells.reserve([(clone, [1])]).rollback()
    append(cells, (clone, [1]))
    cells.rewind(clone, 1)
    assert cells.counters == {
        "tokens": 7, "reservations": 2, "rollbacks": 1, "refusals": 0,
        "clones": 1, "rewinds": 1, "copies": 1, "copied_positions": 2,
    }  # fmt: skip
