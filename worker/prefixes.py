"""Finding, among sessions with cells, the one whose log begins most like another's."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from tokenloom.schemas.log import ID_MASK

from .session import Session

#: Prefixes shorter than this are cheaper to compute again than to look for.
SHORTEST = 16


def common_prefix(one: array[int], other: array[int]) -> int:
    """How many leading tokens two logs share."""
    most = min(len(one), len(other))
    if most == 0:
        return 0
    # the flags tell who wrote a token; cells depend on its id alone
    differs = (np.frombuffer(one, np.uint32, most) ^ np.frombuffer(other, np.uint32, most)) & ID_MASK != 0
    first = int(differs.argmax())
    return first if differs[first] else most


def key_of(session: Session) -> tuple[int, ...]:
    """What sessions that may share a prefix have in common."""
    return tuple(session.ids(0, SHORTEST))


class PrefixIndex:
    """Sessions by the first tokens of their logs.

    Logs may grow while indexed; a cut below ``SHORTEST`` needs ``discard``.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], dict[str, Session]] = {}
        self._key_of: dict[str, tuple[int, ...]] = {}

    def add(self, session: Session) -> None:
        """Index a session, unless its log is too short to be worth sharing."""
        if session.length >= SHORTEST and session.id not in self._key_of:
            key = key_of(session)
            self._groups.setdefault(key, {})[session.id] = session
            self._key_of[session.id] = key

    def discard(self, session: Session) -> None:
        """Forget a session."""
        key = self._key_of.pop(session.id, None)
        if key is not None:
            group = self._groups[key]
            del group[session.id]
            if not group:
                del self._groups[key]

    def best(self, session: Session, usable: Callable[[Session], int]) -> tuple[Session | None, int]:
        """The other session of whose log the longest prefix is also this one's and usable, and that prefix's length.

        ``usable`` says how many of a session's tokens may be taken. Prefixes under ``SHORTEST`` do not count.
        """
        best, longest = None, 0
        if session.length >= SHORTEST:
            for other in self._groups.get(key_of(session), {}).values():
                if other is not session:
                    shared = min(common_prefix(session.log, other.log), usable(other))
                    if shared >= SHORTEST and shared > longest:
                        best, longest = other, shared
        return best, longest
