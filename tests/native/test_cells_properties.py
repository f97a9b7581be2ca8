"""Random opens, appends, clones, rewinds and closes against a simple model that holds real memory.

A cell's content is the whole prefix that ends in it, so a page shared, copied, freed or overwritten at a wrong moment
shows as a sequence whose cells no longer hold its own history.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenloom.native_ext._core import Cells
from tokenloom.native_ext.engine import CellsExhausted, ContextFull, SequencesExhausted

PAGE_SIZE = 8
MAX_PAGES = 14
MAX_SEQUENCES = 5
CONTEXT = 42

Prefix = tuple[int, ...]


class CellsMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.cells = Cells(MAX_PAGES, MAX_SEQUENCES, CONTEXT, PAGE_SIZE)
        self.model: dict[int, list[int]] = {}
        self.memory: dict[tuple[int, int], Prefix] = {}
        self.next_token = 0
        self.open()
        self.model[0] = [-1, -2, -3, -4, -5, -6]
        reservation = self.cells.reserve([(0, self.model[0])])
        self.write(reservation, self.model, len(self.model[0]))
        reservation.commit()

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model)), label="sequence")

    def lengths(self, sequence: int) -> st.SearchStrategy[int]:
        """Mostly within the last page, where sharing is delicate."""
        length = len(self.model[sequence])
        near = st.integers(max(0, length - PAGE_SIZE + 1), length)
        return near | near | st.integers(0, length)

    @precondition(lambda self: len(self.model) < MAX_SEQUENCES)
    @rule()
    def open(self) -> None:
        sequence = self.cells.create()
        assert sequence == min(set(range(MAX_SEQUENCES)) - set(self.model))
        self.model[sequence] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        sequence = self.pick(data)
        held, free = self.cells.pages_held(sequence), self.cells.pages_free
        self.cells.remove(sequence)
        del self.model[sequence]
        assert self.cells.pages_free == free + held

    @precondition(lambda self: self.model and len(self.model) < MAX_SEQUENCES)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        source = self.pick(data)
        upto = data.draw(st.none() | self.lengths(source), label="upto")
        used = self.cells.pages_used
        sequence = self.cells.clone(source, upto)
        self.model[sequence] = self.model[source][:upto]
        assert self.cells.pages_used == used

    @precondition(lambda self: len(self.model) == MAX_SEQUENCES)
    @rule(data=st.data())
    def one_too_many(self, data: st.DataObject) -> None:
        with pytest.raises(SequencesExhausted):
            self.cells.create()
        with pytest.raises(SequencesExhausted):
            self.cells.clone(self.pick(data))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        sequence = self.pick(data)
        to = data.draw(self.lengths(sequence), label="to")
        self.cells.rewind(sequence, to)
        del self.model[sequence][to:]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), keep=st.booleans())
    def append_to_some(self, data: st.DataObject, keep: bool) -> None:
        appends = st.tuples(st.sampled_from(sorted(self.model)), st.integers(1, 17))
        self.append(data, data.draw(st.lists(appends, min_size=1, max_size=4), label="batch"), keep)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), keep=st.booleans())
    def append_to_all(self, data: st.DataObject, keep: bool) -> None:
        self.append(data, [(sequence, 1) for sequence in data.draw(st.permutations(sorted(self.model)))], keep)

    def append(self, data: st.DataObject, counts: list[tuple[int, int]], keep: bool) -> None:
        """Commit the batch, or roll it back after some of it was written."""
        batch = []
        for sequence, count in counts:
            batch.append((sequence, list(range(self.next_token, self.next_token + count))))
            self.next_token += count
        grown = {sequence: list(tokens) for sequence, tokens in self.model.items()}
        for sequence, tokens in batch:
            grown[sequence] += tokens
        growth = {sequence: len(grown[sequence]) - len(self.model[sequence]) for sequence, _ in batch}
        needed, free = self.expected_pages(growth), self.cells.pages_free
        assert self.cells.pages_needed(growth) == needed

        if any(len(tokens) > CONTEXT for tokens in grown.values()):
            with pytest.raises(ContextFull):
                self.cells.reserve(batch)
            return
        if needed > free:
            with pytest.raises(CellsExhausted) as caught:
                self.cells.reserve(batch)
            assert (caught.value.needed, caught.value.free) == (needed, free)
            return
        reservation = self.cells.reserve(batch)
        assert reservation.taken == needed
        assert self.cells.pages_free == free - needed
        written = len(reservation.slots) if keep else data.draw(st.integers(0, len(reservation.slots)), label="written")
        self.write(reservation, grown, written)
        if keep:
            reservation.commit()
            self.model = grown
        else:
            reservation.rollback()
            assert self.cells.pages_free == free

    def expected_pages(self, growth: dict[int, int]) -> int:
        """By the rule in words: new pages, and a copy of every shared partly filled page for each writer, except that
        one of them keeps it when no other sequence has it.
        """
        needed = 0
        writers: dict[int, int] = {}
        for sequence, tokens in growth.items():
            length = len(self.model[sequence])
            needed += -(-(length + tokens) // PAGE_SIZE) - -(-length // PAGE_SIZE)
            if tokens and length % PAGE_SIZE:
                last = self.cells.pages(sequence)[-1]
                writers[last] = writers.get(last, 0) + 1
        for page, count in writers.items():
            owners = sum(page in self.cells.pages(sequence) for sequence in self.model)
            needed += count - 1 if owners == count else count
        return needed

    def write(self, reservation: Any, grown: dict[int, list[int]], count: int) -> None:
        """What the holder of memory does: all copies, then the first `count` writes."""
        sources = {source for source, _, _ in reservation.copies}
        assert not sources & {target for _, target, _ in reservation.copies}
        for source, target, positions in reservation.copies:
            for offset in range(positions):
                self.memory[target, offset] = self.memory[source, offset]
        for sequence, position, page, offset in reservation.slots[:count]:
            self.memory[page, offset] = tuple(grown[sequence][: position + 1])

    @invariant()
    def every_sequence_still_has_its_own_history(self) -> None:
        self.cells.check()
        assert self.cells.sequences() == sorted(self.model)
        for sequence, tokens in self.model.items():
            pages = self.cells.pages(sequence)
            assert self.cells.tokens(sequence) == tokens
            assert len(pages) == -(-len(tokens) // PAGE_SIZE)
            for position in range(len(tokens)):
                held = self.memory[pages[position // PAGE_SIZE], position % PAGE_SIZE]
                assert held == tuple(tokens[: position + 1])

    @invariant()
    def no_page_leaks_and_none_is_free_while_owned(self) -> None:
        owned = {page for sequence in self.model for page in self.cells.pages(sequence)}
        assert self.cells.pages_used == len(owned)
        assert self.cells.pages_free == MAX_PAGES - len(owned)
        assert self.cells.pages_end == max(owned, default=-1) + 1
        for page in range(MAX_PAGES):
            assert self.cells.owners(page) == sum(page in self.cells.pages(sequence) for sequence in self.model)


TestCells = CellsMachine.TestCase
TestCells.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
