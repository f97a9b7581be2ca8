"""Sessions in Redis: reading them, and the fenced writes that are the only way anything of a session changes.

Every write names the owner, the epoch, the state and the length it expects; see lua/commit.lua. A write is safe to send
again when its answer was lost: it carries its job's new record, and Redis recognises that record. So ``write`` repeats
through any trouble with the connection until Redis has answered, and a caller never has to wonder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Literal

import msgpack
from redis import Redis
from redis.client import Pipeline
from rq.defaults import RQ_KEY_PREFIX

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.codec import decode, encode
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.keys import Keys
from tokenloom.schemas.log import words
from tokenloom.schemas.records import JobRecord, StepRecord

from .jobs.scripts import suspect_key
from .retrying import Retrying, transient
from .session import Session
from .settings import WorkerSettings

Status = Literal["ok", "again", "lost", "state", "length"]

#: Most writes of one call of the script, which nothing else in Redis can interrupt.
AT_ONCE = 64


def script_text(name: str) -> str:
    """The text of one of this package's Lua scripts."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


@dataclass(slots=True)
class Write:
    """One atomic write to one session. See lua/commit.lua for the fields. Bytes are what ``encode`` makes of models."""

    session: Session
    job: str
    record: Versioned | bytes
    done: bool = False
    begin: bool = False
    fields: Mapping[str, str | int | float | bytes] = field(default_factory=dict)
    reset: bool = False
    cut: int | None = None
    append: bytes = b""
    events: Sequence[Versioned | bytes] = ()
    ttl: int | None = None

    @property
    def writes(self) -> bool:
        """Whether the job becomes the log's last writer."""
        return self.begin or self.reset or self.cut is not None or bool(self.append)


@dataclass(frozen=True, slots=True)
class Written:
    """Redis's answer. ``length`` is the log's length there; ``cancelled`` that a producer asked the job to end."""

    status: Status
    length: int
    cancelled: bool = False

    @property
    def held(self) -> bool:
        return self.status in ("ok", "again")


class Store:
    """Reads and writes of sessions for one owner. Not thread-safe; the cycle's thread uses it."""

    def __init__(
        self,
        connection: Redis,
        keys: Keys,
        owner: str,
        settings: WorkerSettings,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.owner = owner
        self.settings = settings
        self._scripts = {name: script_text(name) for name in ("commit", "adopt", "release")}
        self._sha = {name: sha1(text.encode()).hexdigest() for name, text in self._scripts.items()}
        self._retrying = Retrying(stopping, self._load_scripts)

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, owned: Mapping[str, int]) -> list[Session]:
        """Sessions as Redis has them, under the epochs given, in that order; one not opened has state ""."""

        def ask(pipe: Pipeline) -> None:
            for session in owned:
                pipe.hgetall(self.keys.session(session))
                pipe.get(self.keys.log(session))

        answers = self._ask_whatever_types(ask)
        return [
            readable_session(name, epoch, fields, log or b"")
            for (name, epoch), fields, log in zip(owned.items(), answers[::2], answers[1::2], strict=True)
        ]

    def records(self, jobs: Sequence[tuple[str, str]]) -> list[tuple[StepRecord | JobRecord | None, bool]]:
        """For each (session, job): its record, and whether a producer asked it to end."""

        def ask(pipe: Pipeline) -> None:
            for session, job in jobs:
                pipe.hget(self.keys.steps(session), job)
                pipe.hexists(self.keys.cancels(session), job)

        answers = self._ask_whatever_types(ask)
        return [(record_of(data), asked is True) for data, asked in zip(answers[::2], answers[1::2], strict=True)]

    def step_events(self, session: str, job: str) -> list[dict[str, Any]]:
        """The events of one job that the session's stream still has, oldest first, undecoded beyond msgpack."""
        entries = self._ask(lambda pipe: pipe.xrange(self.keys.events(session)))[0]
        events = [decode(entry[b"e"]) for _, entry in entries]
        return [event for event in events if event.get("job") == job]

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(
        self, writes: Sequence[Write], *, sequences: Mapping[str, bytes | None] | None = None, worker: str = ""
    ) -> list[Written]:
        """Do every write, in order, in one round trip, and save changed rows of the session table with them.

        Each write stands or falls alone. Repeats what had no answer until Redis gives one.
        """
        calls = [self._call(writes[first : first + AT_ONCE]) for first in range(0, len(writes), AT_ONCE)]

        def ask() -> list[Any]:
            pipe = self.connection.pipeline(transaction=False)
            for call in calls:
                pipe.evalsha(self._sha["commit"], *call)
            if sequences:
                save_sequences(pipe, self.keys.worker_sequences(worker), sequences)
            replies = pipe.execute(raise_on_error=False)[: len(calls)]
            if failed := [reply for reply in replies if isinstance(reply, Exception)]:
                raise next((reply for reply in failed if not transient(reply)), failed[0])
            return replies

        replies = self._retrying(ask) if calls or sequences else []
        return [
            Written(status.decode(), length, bool(cancelled))
            for reply in replies
            for status, length, cancelled in reply
        ]

    def adopt(self, session: str) -> int:
        """Epoch under which an open session without a live owner is now ours; -1 when it is not to be had."""
        seen = self._ask(lambda pipe: pipe.hget(self.keys.session(session), "owner"))[0]
        name, _, incarnation = (seen or b"").decode().rpartition("#")
        return int(
            self._retrying(
                lambda: self.connection.evalsha(
                    self._sha["adopt"],
                    2,
                    self.keys.session(session),
                    self.keys.worker(name),
                    self.owner,
                    seen or b"",
                    incarnation,
                )
            )
        )

    def release(self, sessions: Sequence[Session]) -> list[Session]:
        """Give up sessions that have no work here, so that any worker may take them; those that are not ours any more.

        While jobs wait in this worker's inbox none is given up: one of them may be for such a session.
        """
        inbox = self.keys.worker_inbox(self.owner.rpartition("#")[0])

        def ask(pipe: Pipeline) -> None:
            for session in sessions:
                hash_key, *others = session_keys(self.keys, session.id)
                keys = (hash_key, inbox, *others)
                arguments = (self.owner, session.epoch, self.settings.closed_ttl)
                pipe.evalsha(self._sha["release"], len(keys), *keys, *arguments)

        return [session for session, answer in zip(sessions, self._ask(ask), strict=True) if answer]

    def forget_unused(self, since: float) -> None:
        """Take sessions not used since then (unix seconds) off the list; their keys expire by themselves."""
        self._ask(lambda pipe: pipe.zremrangebyscore(self.keys.sessions, "-inf", f"({since}"))

    def persisted_sequences(self, worker: str) -> dict[str, tuple[int, int]]:
        """The session table a worker of this name left: session -> (sequence, cached length)."""
        rows = self._ask(lambda pipe: pipe.hgetall(self.keys.worker_sequences(worker)))[0]
        return {name.decode(): tuple(msgpack.unpackb(row)) for name, row in rows.items()}

    def save_sequences(self, worker: str, rows: Mapping[str, bytes | None]) -> None:
        """Write rows of the session table; None removes one."""
        if rows:
            self._ask(lambda pipe: save_sequences(pipe, self.keys.worker_sequences(worker), rows))

    def mark_suspect(self, worker: str, job: str | None) -> None:
        """Tell whoever may find this worker dead that this job alone was running; None takes it back."""
        key = suspect_key(self.keys, worker)
        self._ask(lambda pipe: pipe.delete(key) if job is None else pipe.set(key, job))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _load_scripts(self) -> None:
        for text in self._scripts.values():
            self.connection.script_load(text)

    def _ask(self, fill: Callable[[Pipeline], object]) -> list[Any]:
        def ask() -> list[Any]:
            pipe = self.connection.pipeline(transaction=False)
            fill(pipe)
            return pipe.execute()

        return self._retrying(ask)

    def _ask_whatever_types(self, fill: Callable[[Pipeline], object]) -> list[Any]:
        """As ``_ask``; a key of another type than asked for is answered with the exception."""

        def ask() -> list[Any]:
            pipe = self.connection.pipeline(transaction=False)
            fill(pipe)
            answers = pipe.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                    raise answer
            return answers

        return self._retrying(ask)

    def _call(self, writes: Sequence[Write]) -> list[Any]:
        """Number of keys, keys and arguments of one call of the script."""
        keys = [self.keys.sessions, self.keys.worker_jobs(self.owner.rpartition("#")[0])]
        for write in writes:
            keys += commit_keys(self.keys, write.session.id)
        common = {
            "owner": self.owner,
            "remember": self.settings.remember,
            "kept": self.settings.events_kept,
            "job": f"{RQ_KEY_PREFIX}:job:",
        }
        return [len(keys), *keys, lua_packed(common), *map(self._pack, writes)]

    def _pack(self, write: Write) -> bytes:
        state = write.fields.get("state", write.session.state)
        used: float | bool | None = None
        if write.fields.get("state") == "closed":
            used = False
        elif state == "open" and (write.done or write.begin):
            used = time.time()
        record = write.record if isinstance(write.record, bytes) else encode(write.record)
        plan: dict[str, Any] = {
            "epoch": write.session.epoch,
            "state": write.session.state,
            "length": write.session.length,
            "job": write.job,
            "record": record,
            "events": [event if isinstance(event, bytes) else encode(event) for event in write.events],
            "channel": self.keys.tokens(write.session.id),
        }
        # most writes are a running step's, and these have little else
        if write.append:
            plan["append"] = write.append
        if write.writes:
            plan["writes"] = True
        if write.done:
            plan["done"] = True
        if write.begin:
            plan["begin"] = True
        if write.reset:
            plan["reset"] = True
        if write.cut is not None:
            plan["cut"] = write.cut
        if write.fields:
            plan["set"] = [part for pair in write.fields.items() for part in pair]
        if write.ttl is not None:
            plan["ttl"] = write.ttl
        if used is not None:
            plan["used"], plan["name"] = used, write.session.id
        return lua_packed(plan)


@lru_cache(4096)
def session_keys(keys: Keys, session: str) -> tuple[str, ...]:
    """The keys of a session, its hash first."""
    return (keys.session(session), keys.log(session), keys.steps(session), keys.finished(session), keys.events(session))


@lru_cache(4096)
def commit_keys(keys: Keys, session: str) -> tuple[str, ...]:
    """The keys of a session that a commit names."""
    return (*session_keys(keys, session), keys.cancels(session))


def lua_packed(plan: Mapping[str, Any]) -> bytes:
    """For the server's Lua, which reads no bin type and tells no text from bytes."""
    data: bytes = msgpack.packb(plan, use_bin_type=False)
    return data


def record_of(data: bytes | Exception | None) -> StepRecord | JobRecord | None:
    """The record in its bytes, or None."""
    if data is None:
        return None
    if isinstance(data, Exception):
        raise data
    fields = decode(data)
    return JobRecord.model_validate(fields) if "operation" in fields else StepRecord.model_validate(fields)


def readable_session(name: str, epoch: int, fields: Any, log: Any) -> Session:
    """The session, of state ``damaged`` when somebody has written what no worker writes."""
    try:
        if isinstance(fields, Exception) or isinstance(log, Exception):
            raise ValueError("a key of another type")
        session = session_of(name, epoch, fields, log)
        sane = 0 <= session.seed < 1 << 64 and int(fields.get(b"length", b"0")) >= 0
        if not sane or fields.get(b"state", b"open") not in (b"open", b"closed"):
            raise ValueError("a field out of its range")
        return session
    except ValueError:  # of int(), of decode(), of pydantic and of our codec
        return Session(name, epoch, state="damaged")


def session_of(name: str, epoch: int, fields: Mapping[bytes, bytes], log: bytes) -> Session:
    """A Session from its hash and its log. The shorter of the two lengths holds, should they ever disagree."""
    if b"state" not in fields:
        return Session(name, epoch)
    length = min(int(fields.get(b"length", b"0")), len(log) // 4)
    return Session(
        id=name,
        epoch=epoch,
        state="open" if fields[b"state"] == b"open" else "closed",
        model=fields.get(b"model", b"").decode(),
        seed=int(fields.get(b"seed", b"0")),
        defaults=Generation.model_validate(decode(fields[b"defaults"])) if b"defaults" in fields else None,
        parent=fields[b"parent"].decode() if b"parent" in fields else None,
        forked_at=int(fields.get(b"forked_at", b"0")),
        writer=fields.get(b"writer", b"").decode(),
        made_by=fields[b"made_by"].decode() if b"made_by" in fields else None,
        log=words(log[: length * 4]),
    )


def save_sequences(pipe: Pipeline, key: str, rows: Mapping[str, bytes | None]) -> None:
    """Queue the rows of a persisted session table; None removes one."""
    kept: dict[Any, Any] = {name: row for name, row in rows.items() if row is not None}
    gone = [name for name, row in rows.items() if row is None]
    if kept:
        pipe.hset(key, mapping=kept)
        pipe.persist(key)  # a dead worker's table expires; this one lives
    if gone:
        pipe.hdel(key, *gone)
