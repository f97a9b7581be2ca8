"""An engine whose forward runs on a thread of its own, so that the cycle does its other work meanwhile.

- ``launch`` puts one batch in the air and returns at once; ``land`` waits for it and gives what ``forward`` gave. There
  is never more than one in the air.
- Every other call waits until the engine is free, as the contract of engines asks. So nobody has to know whether a
  forward runs; what has to be had without waiting is ``stats``, which are then those of before.

One thread calls everything here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from tokenloom.native_ext.engine import Engine, EngineStats, Entry, Geometry, Output

#: What a forward gave, or raised.
Landed = list[Output] | BaseException


class PipelinedEngine:
    """``engine``, which nobody else may call from now on. ``landed`` is called on the forward's thread after each."""

    def __init__(self, engine: Engine, landed: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._on_landing = landed
        self._batches: SimpleQueue[Sequence[Entry] | None] = SimpleQueue()
        self._off: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Landed] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._flying = False
        self._landed: Landed | None = None
        self._known = engine.stats

    # -- forwards ----------------------------------------------------------------------------------------------------

    @property
    def in_the_air(self) -> bool:
        """Whether a forward was launched that has not landed: ``land`` would wait."""
        return self._flying and self._answers.empty()

    def launch(self, batch: Sequence[Entry]) -> None:
        """Begin a forward. The last one must have been landed."""
        assert self._landed is None, "a forward was not landed"
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tokenloom-forward", daemon=True)
            self._thread.start()
        self._flying = True
        self._batches.put(batch)
        # Python is the forward's until it lets go of it: else it would wait for whatever the caller does next
        self._off.get()

    def land(self) -> list[Output]:
        """The outputs of the forward launched last. Raises what it raised."""
        self.settle()
        landed, self._landed = self._landed, None
        assert landed is not None, "no forward was launched"
        if isinstance(landed, BaseException):
            raise landed
        return landed

    def settle(self) -> None:
        """Wait until no forward runs; what it gave stays for ``land``."""
        if self._flying:
            self._landed = self._answers.get()
            self._flying = False

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._off.put(None)
            try:
                answer: Landed = self._engine.forward(batch)
            except BaseException as error:  # it is for the caller to say what becomes of it
                answer = error
            self._answers.put(answer)
            self._on_landing()

    # -- the engine --------------------------------------------------------------------------------------------------

    @property
    def geometry(self) -> Geometry:
        return self._engine.geometry

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._engine.metadata

    @property
    def stats(self) -> EngineStats:
        """While a forward is in the air, as they were when last asked for."""
        if not self._flying:
            self._known = self._engine.stats
        return self._known

    def new(self) -> int:
        self.settle()
        return self._engine.new()

    def remove(self, sequence: int) -> None:
        self.settle()
        self._engine.remove(sequence)

    def clone(self, sequence: int, upto: int | None = None) -> int:
        self.settle()
        return self._engine.clone(sequence, upto)

    def rewind(self, sequence: int, to: int) -> None:
        self.settle()
        self._engine.rewind(sequence, to)

    def length(self, sequence: int) -> int:
        if self._flying:
            self.settle()
        return self._engine.length(sequence)

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        self.settle()
        return self._engine.pages_needed(growth)

    def pages_held(self, sequence: int) -> int:
        self.settle()
        return self._engine.pages_held(sequence)

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        """On the caller's thread."""
        self.settle()
        return self._engine.forward(batch)

    def close(self) -> None:
        self.settle()
        self._batches.put(None)
        if self._thread is not None:
            self._thread.join()
        self._engine.close()
