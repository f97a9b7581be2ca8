"""From shares to an engine's forward and back: one is in the air while the cycle does the rest of its work.

- A forward that fails changes nothing. Its batch is halved until the culprit is alone; the others get their outputs.
- A clone made while it was in the air may share a page that the batch writes to, and then costs a copy that nobody has
  planned. What does not fit any more is nobody's fault: it gets no outcome, and is planned again.
- A suspect runs alone in every sense: it is marked before its forward begins, and nothing else is done until it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.native_ext.engine import Entry, Output

from .pipelined import PipelinedEngine
from .scheduler import Share
from .stats import Stats
from .suspects import Suspects

#: What a share's part of a forward gave, or why its step alone cannot be run.
Outcome = Output | Exception


class Forwards:
    """The forwards of one cycle."""

    def __init__(self, engine: PipelinedEngine, figures: Stats, suspects: Suspects) -> None:
        self._engine = engine
        self._figures = figures
        self._suspects = suspects
        self._shares: Sequence[Share] = ()

    @property
    def launched(self) -> bool:
        """Whether there is a forward to ``land``."""
        return bool(self._shares)

    def launch(self, shares: Sequence[Share]) -> None:
        """Begin a forward. The one before must have been landed."""
        first = shares[0].step
        suspect = first if len(shares) == 1 and self._suspects.include(first) else None
        with self._suspects.named(suspect):
            self._engine.launch([entry(share) for share in shares])
            if suspect is not None:
                self._engine.settle()
        self._shares = shares

    def land(self) -> list[tuple[Share, Outcome]]:
        """Wait for the forward in the air: an outcome a share, but for steps that ended or were lost meanwhile.

        After a failure, those whose cells do not fit any more have none either: plan them again.
        """
        shares, self._shares = self._shares, ()
        alive = [share for share in shares if share.step.session.running is share.step]
        try:
            outputs = zip(shares, self._engine.land(), strict=True)
        except Exception as error:
            self._figures.forward_failed(len(shares), error)
            return self._halved(alive, error) if len(alive) == len(shares) else self._again(alive)
        return [(share, output) for share, output in outputs if share.step.session.running is share.step]

    def _halved(self, shares: Sequence[Share], error: Exception) -> list[tuple[Share, Outcome]]:
        if len(shares) == 1:
            return [(shares[0], error)]
        half = len(shares) // 2
        return [*self._again(shares[:half]), *self._again(shares[half:])]

    def _again(self, shares: Sequence[Share]) -> list[tuple[Share, Outcome]]:
        if not shares or not self._fit(shares):
            return []
        try:
            return list(zip(shares, self._engine.forward([entry(share) for share in shares]), strict=True))
        except Exception as error:
            self._figures.forward_failed(len(shares), error)
            return self._halved(shares, error)

    def _fit(self, shares: Sequence[Share]) -> bool:
        growth = {share.step.session.sequence: share.count for share in shares}
        needed = self._engine.pages_needed(growth)  # type: ignore[arg-type]
        return needed <= self._engine.stats.pages_free


def entry(share: Share) -> Entry:
    """The engine's part of a batch."""
    step = share.step
    assert step.session.sequence is not None
    tokens = step.ids(share.start, share.start + share.count)
    return Entry(step.session.sequence, tokens, step.sampling if share.sample else None)
