"""The plain Python pages of the engine ``fake`` behave as the real ones: same numbers, same refusals, same copies."""

from __future__ import annotations

import random

from tokenloom.native_ext._core import Cells
from tokenloom.native_ext.engine import EngineError
from tokenloom.native_ext.fake_cells import FakeCells


def test_both_give_the_same_pages_through_random_use() -> None:
    refusals: set[str] = set()
    for seed in range(60):
        random_ = random.Random(seed)
        real, fake = Cells(12, 4, 60, 8), FakeCells(12, 4, 60, 8)
        for _ in range(80):
            sequence = random_.randrange(5)
            action = random_.choice(["create", "remove", "clone", "rewind", "append", "append", "append"])
            length = random_.randint(0, 40)
            batch = [(random_.randrange(4), [random_.randrange(100)] * random_.randint(0, 20)) for _ in range(3)]
            batch = [entry for entry in batch if entry[1] or random_.random() < 0.1]
            keep = random_.random() < 0.7
            outcomes: list[int | str | None] = []
            for cells in (real, fake):
                try:
                    outcomes.append(act(cells, action, sequence, length, batch, keep))
                except EngineError as error:
                    outcomes.append(f"{type(error).__name__}: {error}")
                    refusals.add(type(error).__name__)
            assert outcomes[0] == outcomes[1]
            real.check()
            assert real.pages_free == fake.pages_free
            for number in real.sequences():
                assert real.tokens(number) == fake.at(number).tokens
                assert real.pages(number) == fake.at(number).pages
                assert real.pages_held(number) == fake.pages_held(number)
                assert real.pages_needed({number: 9}) == fake.pages_needed({number: 9})
    assert refusals == {"BatchError", "ContextFull", "CellsExhausted", "SequencesExhausted"}


def act(
    cells: Cells | FakeCells, action: str, sequence: int, length: int, batch: list[tuple[int, list[int]]], keep: bool
) -> int | None:
    if action == "create":
        return cells.create()
    if action == "remove":
        return cells.remove(sequence)
    if action == "clone":
        return cells.clone(sequence, length)
    if action == "rewind":
        return cells.rewind(sequence, length)
    if isinstance(cells, FakeCells):
        undo = cells.append(batch)
        if not keep:
            undo.roll_back()
    else:
        reservation = cells.reserve(batch)
        if keep:
            reservation.commit()
        else:
            reservation.rollback()
    return None
