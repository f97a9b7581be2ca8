"""Any engine, held to one sequence at a time.

For engines whose runtime keeps a single history. The worker can still serve many sessions over one by swapping: the log
is the truth, so a session whose sequence was removed is prefilled again when its turn comes. Rewind is kept, entries of
one batch may abut, ``clone`` is refused, and a sequence opened after a removal starts empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenloom.native_ext.engine import (
    CloneRefused,
    Engine,
    EngineStats,
    Entry,
    Geometry,
    Output,
    SequencesExhausted,
)


class SingleSequence:
    """``engine`` with ``geometry.max_sequences == 1``. It must hold no sequence, and is the adapter's from now on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._geometry = replace(engine.geometry, max_sequences=1)
        self._sequence: int | None = None

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._engine.metadata

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    def new(self) -> int:
        """Raises SequencesExhausted while there is a sequence."""
        if self._sequence is not None:
            raise SequencesExhausted(
                f"this engine holds one sequence at a time: remove sequence {self._sequence} first"
            )
        self._sequence = self._engine.new()
        return self._sequence

    def remove(self, sequence: int) -> None:
        self._engine.remove(sequence)
        self._sequence = None

    def clone(self, sequence: int, upto: int | None = None) -> int:
        """Raises CloneRefused, always."""
        raise CloneRefused("this engine holds one sequence at a time and cannot share its cells")

    def rewind(self, sequence: int, to: int) -> None:
        self._engine.rewind(sequence, to)

    def length(self, sequence: int) -> int:
        return self._engine.length(sequence)

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        return self._engine.pages_needed(growth)

    def pages_held(self, sequence: int) -> int:
        return self._engine.pages_held(sequence)

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        return self._engine.forward(batch)

    def close(self) -> None:
        self._engine.close()
        self._sequence = None
