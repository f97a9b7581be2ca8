"""The pages of cells in plain Python, for the engine ``fake``: same numbers, copies and refusals as ``src/cells.h``.

That header holds the contract. Here a page also has its content, a list of one ``bytes`` a position, so that a wrong
page shows in what the engine computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenloom.native_ext.engine import BatchError, CellsExhausted, ContextFull, SequencesExhausted


@dataclass
class Held:
    """One sequence: its token ids, and the numbers of the pages with their cells."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def copy(self) -> Held:
        return Held(list(self.tokens), list(self.pages))


class FakeCells:
    """Sequences and the pages they share. Not for two threads at once."""

    def __init__(self, max_pages: int, max_sequences: int, context: int, page_size: int) -> None:
        self.max_pages, self.max_sequences = max_pages, max_sequences
        self.context, self.page_size = context, page_size
        self.owners: Counter[int] = Counter()
        self.contents: dict[int, list[bytes]] = {}
        self._sequences: dict[int, Held] = {}

    @property
    def pages_used(self) -> int:
        return len(self.owners)

    @property
    def pages_free(self) -> int:
        return self.max_pages - len(self.owners)

    @property
    def sequences(self) -> int:
        return len(self._sequences)

    def at(self, sequence: int) -> Held:
        """Raises BatchError for an unknown sequence."""
        held = self._sequences.get(sequence)
        if held is None:
            raise BatchError(f"sequence {sequence} does not exist")
        return held

    def create(self) -> int:
        """Raises SequencesExhausted."""
        if len(self._sequences) == self.max_sequences:
            raise SequencesExhausted(f"all {self.max_sequences} sequences are in use")
        number = next(number for number in range(self.max_sequences) if number not in self._sequences)
        self._sequences[number] = Held()
        return number

    def remove(self, sequence: int) -> None:
        self._truncate(self.at(sequence), 0)
        del self._sequences[sequence]

    def clone(self, sequence: int, upto: int | None = None) -> int:
        source = self.at(sequence)
        upto = len(source.tokens) if upto is None else upto
        if not 0 <= upto <= len(source.tokens):
            raise BatchError(f"clone upto is {upto}; sequence {sequence} has {len(source.tokens)} tokens")
        number = self.create()
        clone = self._sequences[number] = Held(source.tokens[:upto], source.pages[: self._pages(upto)])
        self.owners.update(clone.pages)
        return number

    def rewind(self, sequence: int, to: int) -> None:
        held = self.at(sequence)
        if not 0 <= to <= len(held.tokens):
            raise BatchError(f"rewind to is {to}; sequence {sequence} has {len(held.tokens)} tokens")
        self._truncate(held, to)

    def pages_held(self, sequence: int) -> int:
        return sum(self.owners[page] == 1 for page in self.at(sequence).pages)

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        for sequence, tokens in growth.items():
            if tokens < 0:
                raise BatchError(f"growth of sequence {sequence} is {tokens}; it must be at least 0")
        return self._plan(growth)[0]

    def append(self, batch: Sequence[tuple[int, Sequence[int]]]) -> Undo:
        """Place every token, with empty contents, after the copies. Raises before it changes anything."""
        growth: dict[int, int] = {}
        for sequence, tokens in batch:
            self.at(sequence)
            if not tokens:
                raise BatchError(f"an append to sequence {sequence} has no tokens; it needs at least 1")
            growth[sequence] = growth.get(sequence, 0) + len(tokens)
        for sequence, count in growth.items():
            length = len(self.at(sequence).tokens)
            if length + count > self.context:
                raise ContextFull(
                    f"sequence {sequence} would grow from {length} to {length + count} tokens; "
                    f"the context is {self.context}"
                )
        needed, copying = self._plan(growth)
        if needed > self.pages_free:
            raise CellsExhausted(needed, self.pages_free)
        undo = Undo(self, {sequence: self.at(sequence).copy() for sequence in growth})
        for sequence, count in growth.items():
            held = self.at(sequence)
            if sequence in copying:
                filled = len(held.tokens) % self.page_size
                old = held.pages.pop()
                held.pages.append(self._take())
                self.contents[held.pages[-1]][:filled] = self.contents[old][:filled]
                self._drop(old)
            while len(held.pages) < self._pages(len(held.tokens) + count):
                held.pages.append(self._take())
        for sequence, tokens in batch:
            self.at(sequence).tokens.extend(tokens)
        return undo

    def cell(self, sequence: int, position: int) -> bytes:
        held = self.at(sequence)
        return self.contents[held.pages[position // self.page_size]][position % self.page_size]

    def write(self, sequence: int, position: int, content: bytes) -> None:
        held = self.at(sequence)
        self.contents[held.pages[position // self.page_size]][position % self.page_size] = content

    def restore(self, before: Mapping[int, Held]) -> None:
        """Put sequences back as they were; see ``Undo``."""
        for sequence, held in before.items():
            # Owners first, so that no page is free for a moment in between.
            for page in held.pages:
                self.owners[page] += 1
            for page in self.at(sequence).pages:
                self._drop(page)
            self._sequences[sequence] = held

    def _pages(self, length: int) -> int:
        return -(-length // self.page_size)

    def _plan(self, growth: Mapping[int, int]) -> tuple[int, set[int]]:
        """Pages needed, and the sequences whose last page must be copied first."""
        needed = 0
        writers: dict[int, list[int]] = {}
        for sequence, count in growth.items():
            held = self.at(sequence)
            length = len(held.tokens)
            needed += self._pages(length + count) - self._pages(length)
            if count and length % self.page_size and self.owners[held.pages[-1]] > 1:
                writers.setdefault(held.pages[-1], []).append(sequence)
        copying: set[int] = set()
        for page, sequences in writers.items():
            # Where every owner writes, the one that fills most of the page, lowest number first, keeps it.
            sequences.sort(key=lambda sequence: (-len(self.at(sequence).tokens), sequence))
            copying.update(sequences[1:] if len(sequences) == self.owners[page] else sequences)
        return needed + len(copying), copying

    def _take(self) -> int:
        page = next(page for page in range(self.max_pages) if page not in self.owners)
        self.owners[page] = 1
        self.contents[page] = [b""] * self.page_size
        return page

    def _drop(self, page: int) -> None:
        self.owners[page] -= 1
        if self.owners[page] == 0:
            del self.owners[page], self.contents[page]

    def _truncate(self, held: Held, to: int) -> None:
        del held.tokens[to:]
        while len(held.pages) > self._pages(to):
            self._drop(held.pages.pop())


class Undo:
    """What ``append`` returns: takes the whole batch back."""

    def __init__(self, cells: FakeCells, before: dict[int, Held]) -> None:
        self._cells, self._before = cells, before

    def roll_back(self) -> None:
        self._cells.restore(self._before)
