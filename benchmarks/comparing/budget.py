"""How many rounds a run has time for: by what the first one took, with nothing left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: What any question is given at least and at most, seconds.
LEAST_PATIENCE, MOST_PATIENCE = 5.0, 300.0
#: Of a case's share, for trying a peer's settings.
TUNING = 0.25


@dataclass(frozen=True)
class Share:
    """What a case may take, seconds from now, and the most rounds that are worth it."""

    seconds: float
    most: int

    def goes_on(self, rounds: int, spent: float, last: float) -> bool:
        """Whether there is time for another round, after so many: ``spent`` seconds in all, ``last`` in the last."""
        return rounds < self.most and spent + last <= self.seconds

    def tuning(self, sides: int) -> float:
        """Seconds for each of so many sides to try its settings in."""
        return TUNING * max(0.0, self.seconds) / max(1, sides)


class Budget:
    """The seconds of a run from now on, dealt to its cases by their weights.

    What a case leaves of its share goes to those after it, and what one takes too long they make up for. Should all
    the rounds there must be take longer than that, no question waits beyond ``end`` times the seconds.
    """

    def __init__(self, seconds: float, end: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.seconds = seconds
        self._end = end * seconds

    @property
    def spent(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    @property
    def over(self) -> bool:
        """Whether nothing may be asked any more."""
        return self.spent >= self._end

    def share(self, weight: float, after: float, most: int) -> Share:
        """Of a case of that weight; ``after`` is that of all that follow it."""
        left = max(0.0, self.seconds - self.spent)
        return Share(left * weight / (weight + after), most)

    def patience(self) -> float:
        """Seconds that a question may take now: of what is left till the end, others get as much."""
        return max(LEAST_PATIENCE, min(MOST_PATIENCE, (self._end - self.spent) / 2))
