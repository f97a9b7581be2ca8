"""All events of one or many sessions over one connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.events import ClosedEvent, OpenedEvent
from tokenloom.schemas.ids import PATTERNS, SESSION_ID_PATTERN
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.validate import decode_event

from .errors import EventsLost
from .talk import Ask, Emit, Entries, Read, Sleep, Talk, patient

#: Seconds one XREAD waits, and so the longest before a session added meanwhile is read too.
BLOCK = 0.5

#: The beginning of a stream, and everything that comes from now on.
BEGINNING, NOW = "0", "$"

_ID = re.compile(r"\d{1,20}(-\d{1,20})?\Z")


def check_id(from_id: str) -> str:
    """The stream id, or InvalidRequest."""
    if from_id != NOW and not _ID.match(from_id):
        raise TokenloomError.of(
            "invalid",
            f"from_id: {from_id!r} is not a stream id",
            field="from_id",
            value=from_id,
            limit="an event's id such as 1700000000000-0, 0 for the beginning, or $ for what comes from now on",
        )
    return from_id


def check_session(session: str) -> str:
    """The session's id, or InvalidRequest: nothing will ever come of an id that no session can have."""
    if not re.fullmatch(SESSION_ID_PATTERN, session):
        allowed = PATTERNS[SESSION_ID_PATTERN]
        raise TokenloomError.of(
            "invalid",
            f"session: {session!r} is no id for a session; {allowed}",
            field="session",
            value=session,
            limit=allowed,
        )
    return session


def order(id: str) -> tuple[int, int]:
    """A stream id as it sorts."""
    time_ms, _, sequence = id.partition("-")
    return int(time_ms), int(sequence or 0)


def require_untrimmed(keys: Keys, session: str, from_id: str, *, where: str, patience: float) -> Talk[None]:
    """Raises EventsLost unless the stream still reaches back to ``from_id``: only then is nothing missing after it."""
    ask = Ask((("XRANGE", keys.events(session), "-", "+", "COUNT", 1),))
    (oldest,) = yield from patient(ask, where=where, patience=patience)
    if not oldest or order(oldest[0][0].decode()) > order(from_id):
        raise EventsLost(
            f"session {session}: the stream does not reach back to {from_id} any more, so events after it may be "
            "missing; read on from 0, or take a step's result()"
        )


class Following:
    """Sessions and how far each has been read. ``add`` and ``discard`` may be called from anywhere at any time."""

    def __init__(self, keys: Keys, *, where: str, patience: float) -> None:
        self._keys = keys
        self._where = where
        self._patience = patience
        self._last: dict[str, str] = {}
        self._session_of: dict[str, str] = {}
        self._resuming: dict[str, str] = {}
        self.closed = False

    def add(self, session: str, from_id: str = NOW) -> None:
        """Follow a session, too, with the events after ``from_id``. Following one twice keeps its place.

        Raises InvalidRequest for what is no session's or no event's id.
        """
        key = self._keys.events(check_session(session))
        if key not in self._last and check_id(from_id) != NOW and order(from_id) != (0, 0):
            self._resuming[session] = from_id
        self._session_of[key] = session
        self._last.setdefault(key, from_id)

    def discard(self, session: str) -> None:
        """Follow a session no longer."""
        self._last.pop(self._keys.events(session), None)
        self._resuming.pop(session, None)

    def close(self) -> None:
        """Let the iteration end."""
        self.closed = True

    @property
    def positions(self) -> Mapping[str, str]:
        """Session -> id of the last event read, to resume from in another process."""
        return {self._session_of[key]: last for key, last in list(self._last.items())}

    def events(self, *, until_closed: str | None = None) -> Talk[None]:
        """Emits events as they come, in order within a session. Ends after ``close``.

        Raises EventsLost for a session whose stream no longer reaches back to where it was to begin. With
        ``until_closed`` it ends when that session is closed and its stream has no more; refusals may follow the
        ``closed`` event, and so may another life of the session.
        """
        over = False
        while not self.closed:
            yield from self._settle()
            streams = dict(self._last)
            if not streams:
                yield Sleep(BLOCK / 10)
                continue
            entries: Entries = yield from self._patient(Read(streams, 0.0 if over else BLOCK))
            if not entries and until_closed is not None:
                if over:
                    return
                # Then read once more: it may have been closed since.
                over = yield from self._is_closed(until_closed)
            for key, items in entries:
                for id, fields in items:
                    if key not in self._last or self.closed:
                        break
                    event = decode_event(fields[b"e"], id=id)
                    self._last[key] = id
                    if isinstance(event, (ClosedEvent, OpenedEvent)):
                        over = event.type == "closed" and until_closed is not None
                    yield Emit(event)

    def _is_closed(self, session: str) -> Talk[bool]:
        (state,) = yield from self._patient(Ask((("HGET", self._keys.session(session), "state"),)))
        return bool(state == b"closed")

    def _settle(self) -> Talk[None]:
        """Checks places just added, and turns each ``$`` into the id it stands for, so that an outage loses nothing."""
        for session, from_id in list(self._resuming.items()):
            self._resuming.pop(session, None)
            yield from require_untrimmed(self._keys, session, from_id, where=self._where, patience=self._patience)
        keys = [key for key, last in list(self._last.items()) if last == NOW]
        if keys:
            asked = tuple(("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys)
            newest = yield from self._patient(Ask(asked))
            for key, entries in zip(keys, newest, strict=True):
                if self._last.get(key) == NOW:
                    self._last[key] = entries[0][0].decode() if entries else "0-0"

    def _patient(self, wish: Read | Ask) -> Talk[list[Any]]:
        answer: list[Any] = yield from patient(wish, where=self._where, patience=self._patience)
        return answer


def following(keys: Keys, sessions: Iterable[str], from_id: str, *, where: str, patience: float) -> Following:
    """A Following of these sessions."""
    result = Following(keys, where=where, patience=patience)
    for session in sessions:
        result.add(session, from_id)
    return result
