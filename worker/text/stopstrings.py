"""Stop strings, found while the text comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenloom.worker.text.errors import TextError
from tokenloom.worker.text.tokenizer import checked_text


class StopResult(NamedTuple):
    """``text`` to emit now. ``stopped``: a stop string was found, and ``text`` is the last before it. ``stop``:
    which.
    """

    text: str
    stopped: bool
    stop: str | None = None


class StopStrings:
    """Finds the first stop string in a stream of text and holds back only what could still be the beginning of one.

    The rule: generation stops at the earliest point at which the text so far ends with a stop string; of several that
    end there, the longest counts. Everything before that stop string is emitted, and nothing of it or after it. The
    outcome does not depend on how the text is cut into pieces. Characters are compared as they are, without Unicode
    normalization.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises TextError for a stop string that is empty or not a string."""
        if isinstance(stops, str):
            raise TextError(f"stop must be a list of strings, got the string {stops!r}")
        for index, stop in enumerate(stops):
            if not checked_text(stop, f"stop[{index}]"):
                raise TextError(f"stop[{index}] is empty: every text contains it")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self._found: str | None = None

    def push(self, text: str) -> StopResult:
        """Take the next piece of text. Once stopped, everything further is swallowed."""
        if self._found is not None:
            return StopResult("", True, self._found)
        pending = self._held + text
        first: tuple[int, int] | None = None  # (end, start): the earliest end, then the earliest start
        for stop in self._stops:
            start = pending.find(stop)
            if start >= 0 and (first is None or (start + len(stop), start) < first):
                first = (start + len(stop), start)
        if first is not None:
            end, start = first
            self._held, self._found = "", pending[start:end]
            return StopResult(pending[:start], True, self._found)
        emit = len(pending) - self._held_back(pending)
        self._held = pending[emit:]
        return StopResult(pending[:emit], False)

    def flush(self) -> str:
        """The text held back at the end of a generation, when no stop string can come any more."""
        rest, self._held = self._held, ""
        return rest

    def _held_back(self, pending: str) -> int:
        """How many of the last characters could be the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(pending)), longest, -1):
                if pending.endswith(stop[:size]):
                    longest = size
                    break
        return longest
