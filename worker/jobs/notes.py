"""What other threads and signal handlers leave for the main thread."""

from __future__ import annotations

from dataclasses import dataclass
from queue import Empty, SimpleQueue

from .claimed import Claimed, Interruption


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A job is to end."""

    claimed: Claimed
    why: Interruption


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """This incarnation was taken for dead."""

    incarnation: str


Note = Interrupt | LeaseLost | None


class Notes:
    """A queue of notes that wakes its reader. None says no more than "wake up".

    Built on SimpleQueue, whose ``put`` may interrupt itself: a signal handler may leave a note while the main thread is
    inside of ``wait``. An Event could deadlock there.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Note] = SimpleQueue()

    def leave(self, note: Note = None) -> None:
        """From any thread, and from signal handlers."""
        self._queue.put(note)

    def wait(self, seconds: float) -> None:
        """Until there is a note, at most so long. The note stays."""
        try:
            note = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except Empty:
            return
        if note is not None:
            self._queue.put(note)

    def read(self) -> list[Interrupt | LeaseLost]:
        """All notes there are, in order."""
        notes: list[Interrupt | LeaseLost] = []
        while True:
            try:
                note = self._queue.get_nowait()
            except Empty:
                return notes
            if note is not None:
                notes.append(note)
