"""The jobs other than steps: what each would write, and what holds in memory once that is written.

Every function here takes a waiting job and raises TokenloomError to refuse it, or returns a Proposal. Nothing has
happened until the proposal's writes are in Redis; then ``apply`` brings memory in line.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.codec import encode
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.events import ClonedEvent, ClosedEvent, OpenedEvent, RewoundEvent
from tokenloom.schemas.log import words_to_bytes
from tokenloom.schemas.records import CloneResult, CloseResult, JobRecord, OpenResult, RewindResult
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest

from .jobs.claimed import Outcomes
from .residency import Residency
from .session import Session
from .settings import WorkerSettings
from .store import Write
from .waiting import Waiting


@dataclass(slots=True)
class Proposal:
    """Writes of one job, all of which must hold; then ``apply`` brings memory in line and ``end`` reports to RQ.

    ``last`` is written once the others hold: it is what says that the job is done.
    """

    waiting: Waiting
    writes: list[Write] = field(default_factory=list)
    last: Write | None = None
    apply: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Desk:
    """What operations need to know of the worker."""

    sessions: Mapping[str, Session]
    residency: Residency
    settings: WorkerSettings
    outcomes: Outcomes
    fingerprint: str


def propose(waiting: Waiting, session: Session, desk: Desk) -> Proposal:
    """The proposal of any job but a step."""
    request = waiting.claimed.request
    if isinstance(request, OpenRequest):
        return propose_open(waiting, request, session, desk)
    if isinstance(request, CloneRequest):
        return propose_clone(waiting, request, session, desk)
    if isinstance(request, RewindRequest):
        return propose_rewind(waiting, request, session, desk)
    assert isinstance(request, CloseRequest)
    return propose_close(waiting, request, session, desk)


def must_be_open(session: Session, fingerprint: str) -> None:
    """Refuse unless the session is open and belongs to the model loaded here."""
    if session.state == "":
        raise TokenloomError.of(
            "no_such_session",
            f"session {session.id!r} does not exist: open it first",
            field="session",
            value=session.id,
        )
    if session.state == "closed":
        raise TokenloomError.of(
            "session_closed", f"session {session.id!r} is closed: open it again", field="session", value=session.id
        )
    if session.model != fingerprint:
        raise TokenloomError.of(
            "model_mismatch",
            f"session {session.id!r} belongs to model {session.model[:12]}, and this worker serves {fingerprint[:12]}",
            field="session",
            value=session.model,
            limit=fingerprint,
        )


def propose_open(waiting: Waiting, request: OpenRequest, session: Session, desk: Desk) -> Proposal:
    """An empty log; or, with ``exist_ok``, whatever an open session holds."""
    if session.state == "open":
        if not request.exist_ok:
            raise TokenloomError.of(
                "session_exists",
                f"session {session.id!r} is open already: pass exist_ok=True to take it as it is, or choose another id",
                field="session",
                value=session.id,
            )
        must_be_open(session, desk.fingerprint)
        found = OpenResult(session=session.id, seed=session.seed, length=session.length, created=False)
        return _proposal(waiting, found, [_final(waiting, session, "open", found)], desk)
    seed = request.seed if request.seed is not None else secrets.randbits(64)
    result = OpenResult(session=session.id, seed=seed, length=0, created=True)
    write = _final(waiting, session, "open", result)
    write.reset, write.ttl = session.state == "closed", desk.settings.idle_ttl
    write.fields = _fields(desk.fingerprint, seed, request.tenant)
    if request.defaults is not None:
        write.fields["defaults"] = encode(request.defaults.model_dump(exclude_none=True))
    write.events = [OpenedEvent(session=session.id, job=waiting.id, at=time.time(), seed=seed)]

    def apply() -> None:
        session.state, session.model, session.seed = "open", desk.fingerprint, seed
        session.defaults, session.parent, session.log = request.defaults, None, array("I")

    return _proposal(waiting, result, [write], desk, apply)


def propose_clone(waiting: Waiting, request: CloneRequest, source: Session, desk: Desk) -> Proposal:
    """Each target opened with the source's first tokens, then the source told. Targets made by a former try stay."""
    must_be_open(source, desk.fingerprint)
    upto = source.length if request.upto is None else request.upto
    if upto > source.length:
        raise TokenloomError.of(
            "invalid",
            f"upto: {upto} is beyond the {source.length} tokens of session {source.id!r}",
            field="upto",
            value=upto,
            limit=f"at most {source.length}",
        )
    seeds = request.seeds or [derived_seed(source.seed, target) for target in request.targets]
    result = CloneResult(session=source.id, targets=request.targets, seeds=seeds, length=upto)
    log = source.log[:upto]
    writes, made = [], []
    for name, seed in zip(request.targets, seeds, strict=True):
        target = desk.sessions.get(name)
        if target is not None and target.made_by == waiting.id:
            continue
        if waiting.claimed.epochs.get(name, 0) < 0:
            message = (
                f"targets: session {name!r} is another worker's, where it is open or has work to do; to clone into it,"
                " close it and wait for that first"
            )
            raise TokenloomError.of("session_exists", message, field="targets", value=name)
        if target is None or target.state == "open":
            raise TokenloomError.of(
                "session_exists", f"targets: session {name!r} is open already", field="targets", value=name
            )
        write = _final(waiting, target, "clone", result)
        write.reset, write.ttl = target.state == "closed", desk.settings.idle_ttl
        write.append = words_to_bytes(log)
        write.fields = _fields(desk.fingerprint, seed, request.tenant)
        write.fields |= {"parent": source.id, "forked_at": upto, "made_by": waiting.id}
        if source.defaults is not None:
            write.fields["defaults"] = encode(source.defaults.model_dump(exclude_none=True))
        write.events = [
            OpenedEvent(session=name, job=waiting.id, at=time.time(), seed=seed, length=upto, parent=source.id)
        ]
        writes.append(write)
        made.append((target, seed))
    told = _final(waiting, source, "clone", result)
    told.events = [ClonedEvent(session=source.id, job=waiting.id, at=time.time(), targets=request.targets, length=upto)]

    def apply() -> None:
        for target, seed in made:
            target.state, target.model, target.seed = "open", desk.fingerprint, seed
            target.defaults, target.parent, target.forked_at = source.defaults, source.id, upto
            target.made_by, target.log = waiting.id, log[:]
            desk.residency.fork(source, target, upto)

    proposal = _proposal(waiting, result, writes, desk, apply)
    proposal.last = told
    return proposal


def propose_rewind(waiting: Waiting, request: RewindRequest, session: Session, desk: Desk) -> Proposal:
    """The log cut to ``to`` tokens."""
    must_be_open(session, desk.fingerprint)
    if request.to > session.length:
        raise TokenloomError.of(
            "invalid",
            f"to: {request.to} is beyond the {session.length} tokens of session {session.id!r}",
            field="to",
            value=request.to,
            limit=f"at most {session.length}",
        )
    result = RewindResult(session=session.id, length=request.to)
    write = _final(waiting, session, "rewind", result)
    write.cut = request.to
    write.events = [RewoundEvent(session=session.id, job=waiting.id, at=time.time(), length=request.to)]

    def apply() -> None:
        del session.log[request.to :]
        desk.residency.rewind(session, request.to)

    return _proposal(waiting, result, [write], desk, apply)


def propose_close(waiting: Waiting, request: CloseRequest, session: Session, desk: Desk) -> Proposal:
    """Cells freed, keys left to expire. Closing what is not open changes nothing."""
    result = CloseResult(session=session.id, closed=session.state == "open")
    write = _final(waiting, session, "close", result)
    write.ttl = desk.settings.closed_ttl
    if result.closed:
        write.fields = {"state": "closed"}
        write.events = [ClosedEvent(session=session.id, job=waiting.id, at=time.time())]

    def apply() -> None:
        if result.closed:
            session.state = "closed"
        desk.residency.drop(session)

    return _proposal(waiting, result, [write], desk, apply)


def derived_seed(seed: int, clone: str) -> int:
    """A clone's seed: the first 64 bits, little-endian, of BLAKE2b over the source's seed (8 bytes) and the clone's
    id.
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + clone.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _proposal(
    waiting: Waiting, result: Versioned, writes: list[Write], desk: Desk, apply: Callable[[], None] = lambda: None
) -> Proposal:
    return Proposal(waiting, writes, apply=apply, end=lambda: desk.outcomes.finish(waiting.claimed, result))


def _final(waiting: Waiting, session: Session, operation: str, result: Versioned) -> Write:
    record = JobRecord.model_validate({"operation": operation, "result": result, "deaths": waiting.claimed.deaths})
    return Write(session, waiting.id, record, done=True)


def _fields(fingerprint: str, seed: int, tenant: str | None) -> dict[str, str | int | float | bytes]:
    now = time.time()
    fields: dict[str, str | int | float | bytes] = {
        "v": 1, "state": "open", "model": fingerprint, "seed": str(seed), "created": now, "used": now,
    }  # fmt: skip
    return fields | ({"tenant": tenant} if tenant else {})
