"""Rebuilding the cells a worker of this name had in its last life.

Sessions are taken in the order of their logs, so that those with a common beginning follow one another: each is cloned
off its neighbour as far as their logs agree, and every shared prefix is computed once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

from tqdm import tqdm  # type: ignore[import-untyped]

from tokenloom.native_ext.engine import Entry

from .residency import Residency
from .session import Session
from .session_table import SessionTable
from .store import Store

log = logging.getLogger("rq.worker")


class Restorer:
    """Reads the persisted session table of one worker and, if told to, rebuilds what it lists."""

    def __init__(self, store: Store, table: SessionTable, residency: Residency, worker: str) -> None:
        self._store = store
        self._table = table
        self._residency = residency
        self._worker = worker

    def restore(self, *, eager: bool) -> int:
        """Tokens run to rebuild cells. Lazily, none: sessions are rebuilt when next needed."""
        rows = self._store.persisted_sequences(self._worker)
        if not rows:
            return 0
        if not eager:
            log.info("tokenloom: %d sessions had cells before; each is rebuilt when next needed", len(rows))
            self._store.save_sequences(self._worker, dict.fromkeys(rows))  # none has any now
            return 0
        wanted = {name: cached for name, (_, cached) in rows.items()}
        sessions = list(self._adopted(wanted))
        run = self._rebuild(sessions, wanted)
        log.info("tokenloom: rebuilt %d sessions by running %d tokens", len(sessions), run)
        return run

    def _adopted(self, wanted: dict[str, int]) -> Iterator[Session]:
        """The sessions that are still open and ours to have; rows of the others go."""
        epochs = {name: self._store.adopt(name) for name in wanted}
        gone = [name for name, epoch in epochs.items() if epoch < 0]
        self._store.save_sequences(self._worker, dict.fromkeys(gone))
        yield from self._table.adopt({name: epoch for name, epoch in epochs.items() if epoch >= 0})

    def _rebuild(self, sessions: list[Session], wanted: dict[str, int]) -> int:
        engine = self._residency.engine
        chunk = engine.geometry.max_batch_tokens
        sessions.sort(key=lambda session: session.ids())
        targets = {session.id: min(session.length, wanted[session.id]) for session in sessions}
        run = 0
        bar = tqdm(total=sum(targets.values()), desc="rebuilding cells", unit="tokens", disable=not sys.stderr.isatty())
        with bar:
            for session in sessions:
                if len(self._residency) >= engine.geometry.max_sequences:
                    break
                if not self._residency.ensure(session, growing=lambda _: False):
                    break
                assert session.sequence is not None
                cached = self._residency.cached(session)
                bar.update(min(cached, targets[session.id]))
                while cached < targets[session.id]:
                    part = session.ids(cached, min(cached + chunk, targets[session.id]))
                    if engine.pages_needed({session.sequence: len(part)}) > engine.stats.pages_free:
                        return run
                    engine.forward([Entry(session.sequence, part)])
                    cached += len(part)
                    run += len(part)
                    bar.update(len(part))
                self._residency.touch(session)
        return run
