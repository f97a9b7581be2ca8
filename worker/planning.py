"""From running steps to the shares of a forward: cells first, then the budget, then making it fit.

Older steps come first when cells are short: a younger one gives up its cells and is rebuilt once there is room, so that
whatever is running, the oldest step always gets on.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.schemas.errors import ErrorBody

from .residency import Residency
from .scheduler import Ready, Scheduler, Share
from .session import Session
from .settings import WorkerSettings
from .step import Step
from .suspects import Suspects


class Planner:
    """Plans one forward at a time over one residency."""

    def __init__(self, residency: Residency, settings: WorkerSettings, suspects: Suspects) -> None:
        self._residency = residency
        self._suspects = suspects
        self._engine = residency.engine
        geometry = self._engine.geometry
        self._page_size = geometry.page_size
        budget = min(settings.max_batch_tokens, geometry.max_batch_tokens)
        self._scheduler = Scheduler(budget, min(settings.prefill_chunk, budget))
        self._parked: set[str] = set()
        self._suspects_turn = False
        self.preempted = 0

    def plan(self, running: Sequence[Step]) -> tuple[list[Share], list[Step], list[tuple[Step, ErrorBody]]]:
        """Shares to run now; steps that have nothing to run; steps that will never fit, and why.

        ``running``: the steps at work, oldest first. What they have computed counts, be it committed or not.
        """
        if self._parked:
            self._parked &= {step.id for step in running}
        ready, idle = self._ready(self._field(running))
        shares = self._scheduler.plan(ready)
        hopeless = self._fit(shares, running)
        return shares, idle, hopeless

    def _field(self, running: Sequence[Step]) -> Sequence[Step]:
        """Everyone, or one suspect alone every other turn."""
        suspects = self._suspects.among(running)
        if not suspects:
            return running
        self._suspects_turn = not self._suspects_turn or len(suspects) == len(running)
        return suspects[:1] if self._suspects_turn else [step for step in running if step not in suspects]

    def _ready(self, running: Sequence[Step]) -> tuple[list[Ready], list[Step]]:
        ready, idle = [], []
        for step in running:
            session = step.session
            if step.id in self._parked and not self._room_for(step, running):
                continue
            if session.sequence is None and not self._residency.ensure(session, growing=self._grows):
                continue
            self._parked.discard(step.id)
            cached, end, generating = self._residency.cached(session), step.length, step.generating
            if generating and cached == end:
                # the last token runs again: its logits are what the next token is drawn from
                cached = end - 1
                self._residency.trim(session, cached)
            if not step.tokens and not step.started:
                step.started, step.cached = True, min(cached, step.base + step.appended)
            if cached == end:
                idle.append(step)
            else:
                ready.append(Ready(step, cached, end, generating))
        return ready, idle

    def _grows(self, session: Session) -> bool:
        return session.running is not None and session.working and session.running.id not in self._parked

    def _room_for(self, parked: Step, running: Sequence[Step]) -> bool:
        """Whether a step that gave up its cells may have them back: there is room, or nobody else is at work."""
        pages = parked.length // self._page_size + 1
        if self._engine.stats.pages_free + self._residency.evictable_pages() >= pages:
            return True
        return all(step.session.sequence is None for step in running)

    # -- making it fit -----------------------------------------------------------------------------------------------

    def _fit(self, shares: list[Share], running: Sequence[Step]) -> list[tuple[Step, ErrorBody]]:
        """Evict idle cells, then take from the youngest, until the shares fit. Drops shares that have to wait."""
        age: dict[str, int] = {}
        while shares:
            growth = {share.step.session.sequence: share.count for share in shares}
            if self._residency.make_room(growth):  # type: ignore[arg-type]
                return []
            age = age or {step.id: index for index, step in enumerate(running)}
            in_batch = {share.step.id for share in shares}
            idle = [
                step
                for step in running
                if step.id not in in_batch and step.session.sequence is not None and step.id not in self._parked
            ]
            oldest = min(shares, key=lambda share: age[share.step.id])
            younger = [step for step in idle if age[step.id] > age[oldest.step.id]]
            if len(shares) > 1:
                victim = max(shares, key=lambda share: age[share.step.id])
                shares.remove(victim)
                self._preempt(victim.step)
            elif younger or idle:
                self._preempt(max(younger or idle, key=lambda step: age[step.id]))
            else:
                return [(shares.pop().step, self._never_fits(oldest))]
        return []

    def _preempt(self, step: Step) -> None:
        self._residency.drop(step.session)
        self._parked.add(step.id)
        self.preempted += 1

    def _never_fits(self, share: Share) -> ErrorBody:
        geometry = self._engine.geometry
        return ErrorBody(
            code="cells_exhausted",
            message=f"{share.start + share.count} tokens do not fit the worker's {geometry.max_pages} pages of cells"
            " even alone: raise TOKENLOOM_KV_BYTES",
            field="tokens",
            value=str(share.start + share.count),
            limit=str(geometry.max_pages * geometry.page_size),
        )
