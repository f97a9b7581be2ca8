"""Which sessions there are."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.schemas.keys import Keys

from .talk import Ask, Talk, patient


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What Redis says of a session. Times are unix seconds; ``owner`` is the worker that holds it, or None."""

    id: str
    used: float
    length: int
    state: str
    owner: str | None
    parent: str | None
    created: float | None


_FIELDS = ("length", "state", "owner", "parent", "created")


def list_sessions(keys: Keys, limit: int, *, where: str) -> Talk[list[SessionInfo]]:
    """The ``limit`` sessions used last, the latest first. Raises RedisUnavailable."""
    first = Ask((("ZREVRANGE", keys.sessions, 0, max(limit, 1) - 1, "WITHSCORES"),))
    (answer,) = yield from patient(first, where=where, patience=0.0)
    used = {_text(pair[0]): float(pair[1]) for pair in _pairs(answer)}
    if not used:
        return []
    hashes = Ask(tuple(("HMGET", keys.session(id), *_FIELDS) for id in used))
    answers = yield from patient(hashes, where=where, patience=0.0)
    return [_info(id, used[id], fields) for id, fields in zip(used, answers, strict=True)]


def _info(id: str, used: float, fields: list[bytes | None]) -> SessionInfo:
    length, state, owner, parent, created = (None if value is None else _text(value) for value in fields)
    # An owner is written NAME#INCARNATION.
    return SessionInfo(
        id=id,
        used=used,
        length=int(length or 0),
        state=state or "gone",
        owner=owner.split("#")[0] if owner else None,
        parent=parent or None,
        created=float(created) if created else None,
    )


def _pairs(answer: list[object]) -> list[tuple[object, float]]:
    """Members and scores, whether the client has paired them or not."""
    if answer and isinstance(answer[0], (list, tuple)):
        return [(pair[0], float(pair[1])) for pair in answer if isinstance(pair, (list, tuple))]
    return [(member, float(_text(score))) for member, score in zip(answer[::2], answer[1::2], strict=True)]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
