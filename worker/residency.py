"""Which sessions have cells, and making room: the worker's side of "cells are a cache of the log".

A session without cells gets a sequence by cloning the longest prefix that some resident session's log shares with its
own, so a prefix that many sessions share is computed once, whether they are clones, were evicted, or are being rebuilt
after a restart. When numbers or pages run out, idle sessions lose their cells, least recently used first.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping

import msgpack

from tokenloom.native_ext.engine import CloneRefused, Engine, SequencesExhausted

from .prefixes import PrefixIndex
from .session import Session

log = logging.getLogger("rq.worker")


class Residency:
    """Sequences of an engine, given to sessions. Keeps the rows of the persisted session table that have changed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.evictions = 0
        #: Sessions whose cells were lost and are computed again, and how many tokens that costs.
        self.rebuilt = 0
        self.rebuilt_tokens = 0
        self.shared_tokens = 0
        self._resident: dict[str, Session] = {}
        self._prefixes = PrefixIndex()
        self._clock = itertools.count()
        self._last_use: dict[str, int] = {}
        self._changed: dict[str, Session | None] = {}
        self._clones = engine.geometry.max_sequences > 1

    def __len__(self) -> int:
        return len(self._resident)

    def cached(self, session: Session) -> int:
        """How many of the log's tokens have cells."""
        return 0 if session.sequence is None else self.engine.length(session.sequence)

    def touch(self, session: Session) -> None:
        """Mark as just used, and its row as changed."""
        if session.sequence is not None:
            self._last_use[session.id] = next(self._clock)
            self._changed[session.id] = session
            self._prefixes.add(session)

    # -- getting cells -----------------------------------------------------------------------------------------------

    def ensure(self, session: Session, growing: Callable[[Session], bool]) -> bool:
        """Give the session a sequence. False: it has to wait for a number, or for a prefix another is computing now.

        ``growing`` tells whether a resident session's cells will grow up to its log's end without our doing.
        """
        if session.sequence is not None:
            return True
        donor, shared = self._donor(session, growing)
        if donor is not None:
            if self.cached(donor) < shared:
                return False
            sequence = self._clone_of(donor, shared)
        else:
            sequence = self._numbered(self.engine.new)
        if sequence is None:
            return False
        self._seat(session, sequence)
        self._count_rebuilt(session, shared if donor is not None else 0)
        return True

    def _count_rebuilt(self, session: Session, shared: int) -> None:
        """What had been computed before, here or elsewhere: all that was in the log when a fresh step came."""
        step = session.running
        known = session.length if step is None or step.tokens else step.base
        if known > shared:
            self.rebuilt += 1
            self.rebuilt_tokens += known - shared

    def _donor(self, session: Session, growing: Callable[[Session], bool]) -> tuple[Session | None, int]:
        if not self._clones:
            return None, 0
        return self._prefixes.best(session, lambda other: other.length if growing(other) else self.cached(other))

    def fork(self, source: Session, target: Session, upto: int) -> None:
        """Let a new clone share its source's cells, if it has any and a number is free. Computes nothing."""
        cached = min(upto, self.cached(source))
        if cached and target.sequence is None and self._clones:
            try:
                sequence = self.engine.clone(source.sequence, cached)  # type: ignore[arg-type]
            except (SequencesExhausted, CloneRefused):
                return
            self._seat(target, sequence)

    def _clone_of(self, donor: Session, upto: int) -> int | None:
        """A clone of a resident session. Eviction may take the donor itself; then a fresh sequence is as good."""

        def clone() -> int:
            if donor.sequence is None or upto == 0:
                return self.engine.new()
            made = self.engine.clone(donor.sequence, upto)
            self.shared_tokens += upto
            return made

        self.touch(donor)
        return self._numbered(clone)

    def _numbered(self, make: Callable[[], int]) -> int | None:
        while True:
            try:
                return make()
            except SequencesExhausted:
                if not self.evict_one():
                    return None

    def _seat(self, session: Session, sequence: int) -> None:
        session.sequence = sequence
        self._resident[session.id] = session
        self.touch(session)

    # -- giving cells up ---------------------------------------------------------------------------------------------

    def rewind(self, session: Session, to: int) -> None:
        """Cut the cells, if they reach that far. Call after the log was cut."""
        self._prefixes.discard(session)
        if session.sequence is not None:
            if self.cached(session) > to:
                self.engine.rewind(session.sequence, to)
            self.touch(session)

    def trim(self, session: Session, to: int) -> None:
        """Forget the cells past ``to``, of a log that keeps its tokens."""
        if session.sequence is not None:
            self.engine.rewind(session.sequence, to)

    def move(self, known: Session, fresh: Session, keep: int) -> None:
        """Give one Session's cells to another that replaces it, as far as they are still true."""
        sequence = known.sequence
        if sequence is None:
            return
        self._prefixes.discard(known)
        known.sequence, fresh.sequence = None, sequence
        self._resident[fresh.id] = fresh
        self.trim(fresh, keep)
        self.touch(fresh)

    def drop(self, session: Session) -> None:
        """Take a session's cells away. Its log remains, so nothing is lost."""
        self._changed[session.id] = None
        if session.sequence is None:
            return
        self.engine.remove(session.sequence)
        session.sequence = None
        self._prefixes.discard(session)
        del self._resident[session.id]
        self._last_use.pop(session.id, None)

    def evict_one(self, spare: Iterable[Session] = ()) -> bool:
        """Take the cells of the least recently used session that has no step at work. False when there is none."""
        spared = {session.id for session in spare}
        idle = [s for s in self._resident.values() if not s.working and s.id not in spared]
        if not idle:
            return False
        evicted = min(idle, key=lambda s: self._last_use[s.id])
        self.drop(evicted)
        self.evictions += 1
        log.debug("tokenloom: session %s gave up its cells", evicted.id, extra={"session": evicted.id})
        return True

    def make_room(self, growth: Mapping[int, int], spare: Iterable[Session] = ()) -> bool:
        """Evict idle sessions until a batch growing sequences so much would fit. False when it still does not."""
        while self.engine.pages_needed(growth) > self.engine.stats.pages_free:
            if not self.evict_one(spare):
                return False
        return True

    def evictable_pages(self) -> int:
        """Pages that dropping every idle session would free, at least."""
        return sum(
            self.engine.pages_held(session.sequence)
            for session in self._resident.values()
            if not session.working and session.sequence is not None
        )

    # -- the persisted session table ---------------------------------------------------------------------------------

    def changed_rows(self) -> dict[str, bytes | None]:
        """Rows of the session table changed since last asked: session -> msgpack [sequence, cached length], or None."""
        rows: dict[str, bytes | None] = {
            name: None if session is None else msgpack.packb([session.sequence, self.cached(session)])
            for name, session in self._changed.items()
        }
        self._changed.clear()
        return rows
