"""What a worker counts, for its heartbeat hash and its log."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence

from tokenloom.native_ext.engine import Engine
from tokenloom.schemas.errors import TokenloomError

from .logs import about
from .residency import Residency
from .scheduler import Share
from .step import Step

log = logging.getLogger("rq.worker")

#: Cycles over which the recent figures are taken.
RECENT = 256


class Stats:
    """Counters since start; ``recent`` figures over the last cycles that ran a forward."""

    def __init__(self) -> None:
        self.cycles = 0
        self.shares = 0
        self.tokens_run = 0
        self.tokens_generated = 0
        self.forward_seconds = 0.0
        self.cycle_seconds = 0.0
        self.resumed = 0
        self.fenced = 0
        self.reread = 0
        self.restored_tokens = 0
        self.failed_forwards = 0
        self.steps: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT)

    def cycle(self, shares: Sequence[Share], forward: float, whole: float) -> None:
        """One cycle with a forward: its seconds in the forward by the engine's own account, and in all."""
        self.cycles += 1
        self.shares += len(shares)
        self.tokens_run += sum(share.count for share in shares)
        self.tokens_generated += sum(share.sample for share in shares)
        self.forward_seconds += forward
        self.cycle_seconds += whole
        self._recent.append((len(shares), forward, whole))

    def rest(self, seconds: float) -> None:
        """After the last forward, until all was committed and there was nothing more to do."""
        self.cycle_seconds += seconds
        if self._recent:
            shares, forward, whole = self._recent.pop()
            self._recent.append((shares, forward, whole + seconds))

    def finished(self, step: Step) -> None:
        """A step ended."""
        self.steps[str(step.reason)] += 1
        log.debug(
            "tokenloom: step %s of session %s: %s, %d tokens",
            step.id,
            step.session.id,
            step.reason,
            len(step.tokens),
            extra={**about(step.session.id, step.id, step=True), "reason": step.reason, "tokens": len(step.tokens)},
        )

    def refuse(self, error: TokenloomError, session: str | None, job: str) -> None:
        """A job was refused; counted by error code."""
        self.refused[error.code] += 1
        log.info("tokenloom: job %s refused: %s", job, error, extra={**about(session, job), "code": error.code})

    def resume(self, step: Step) -> None:
        """A step that another run began goes on here."""
        self.resumed += 1
        log.info(
            "tokenloom: step %s of session %s goes on after %d tokens",
            step.id,
            step.session.id,
            len(step.tokens),
            extra={**about(step.session.id, step.id, step=True), "tokens": len(step.tokens)},
        )

    def fence(self, session: str, job: str) -> None:
        """A write was refused, since another worker has the session."""
        self.fenced += 1
        log.warning(
            "tokenloom: session %s is another worker's now; what job %s did since its last commit is dropped",
            session,
            job,
            extra=about(session, job),
        )

    def read_again(self, session: str, job: str) -> None:
        """A write was refused, since Redis has another log than we thought."""
        self.reread += 1
        log.warning(
            "tokenloom: Redis has another log of session %s than job %s was to go on from; taking Redis's word",
            session,
            job,
            extra=about(session, job),
        )

    def forward_failed(self, entries: int, error: Exception) -> None:
        """A forward raised."""
        self.failed_forwards += 1
        log.error("tokenloom: a forward of %d sessions failed: %s: %s", entries, type(error).__name__, error)

    def snapshot(self, engine: Engine, residency: Residency, running: int, active: int) -> dict[str, int | float | str]:
        """Everything, flat. ``outside_forward`` is the share of recent cycles not spent in the forward."""
        recent = list(self._recent)
        whole = sum(item[2] for item in recent)
        engine_stats = engine.stats
        figures: dict[str, int | float | str] = {
            "running": running,
            "active": active,
            "resident": len(residency),
            "cycles": self.cycles,
            "tokens_run": self.tokens_run,
            "tokens_generated": self.tokens_generated,
            "forward_seconds": round(self.forward_seconds, 3),
            "cycle_seconds": round(self.cycle_seconds, 3),
            "sessions_per_forward": round(self.shares / self.cycles, 2) if self.cycles else 0.0,
            "recent_sessions_per_forward": round(sum(i[0] for i in recent) / len(recent), 2) if recent else 0.0,
            "outside_forward": round(1 - sum(i[1] for i in recent) / whole, 4) if whole else 0.0,
            "resumed": self.resumed,
            "fenced": self.fenced,
            "reread": self.reread,
            "restored_tokens": self.restored_tokens,
            "failed_forwards": self.failed_forwards,
            "evicted": residency.evictions,
            "rebuilt": residency.rebuilt,
            "rebuilt_tokens": residency.rebuilt_tokens,
            "shared_tokens": residency.shared_tokens,
            "pages_used": engine_stats.pages_used,
            "pages_free": engine_stats.pages_free,
        }
        figures |= {f"steps_{reason}": count for reason, count in sorted(self.steps.items())}
        figures |= {f"refused_{code}": count for code, count in sorted(self.refused.items())}
        return figures
