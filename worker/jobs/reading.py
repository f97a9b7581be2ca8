"""From a job's hash, which anybody may have written, to an RQ job and a request, or to the reason why not."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from redis import Redis
from rq.utils import utcformat

from tokenloom.schemas.codec import MAX_BYTES, CodecError, decode
from tokenloom.schemas.errors import TokenloomError, shorten
from tokenloom.schemas.ids import SESSION_ID_PATTERN
from tokenloom.schemas.requests import MAX_APPENDED_TOKENS, Request
from tokenloom.schemas.serializer import MsgpackSerializer
from tokenloom.schemas.validate import parse_request

from .guarded import GuardedJob

#: Most bytes of a job's data as stored, compressed or not.
MAX_STORED = MAX_BYTES + 1024

#: Most values in a job's data: the longest list of tokens there may be and some more. Most arrays and maps: that many
#: messages and some more. Both bound the time a job takes to read.
MAX_ITEMS = MAX_APPENDED_TOKENS + (1 << 16)
MAX_CONTAINERS = 1 << 13

#: RQ's numbers in a job's hash, all of which it hands to Redis or to a timer.
_NUMBERS = {
    "timeout": "timeout",
    "result_ttl": "result_ttl",
    "failure_ttl": "failure_ttl",
    "ttl": "ttl",
    "success_callback_timeout": "_success_callback_timeout",
    "failure_callback_timeout": "_failure_callback_timeout",
    "stopped_callback_timeout": "_stopped_callback_timeout",
    "retries_left": "retries_left",
    "number_of_retries": "number_of_retries",
    "repeats_left": "repeats_left",
}
_MOST = 1 << 31

#: A step's id, which events carry, is its job's.
LONGEST_ID = 128

#: Read anew when they are needed, and never by a worker: what an earlier run left, of whatever size.
_LEFT_OUT = (b"result", b"exc_info")


@dataclass(frozen=True, slots=True)
class Read:
    """What a hash holds: a request or a refusal. ``session`` is where events about the job go, if that is known."""

    job: GuardedJob
    request: Request | None
    refusal: TokenloomError | None
    session: str | None

    @property
    def sessions(self) -> tuple[str, ...]:
        """Every session the job needs, as far as it says."""
        if self.request is not None:
            return self.request.sessions
        return () if self.session is None else (self.session,)


class Reader:
    """Reads job hashes. Never raises for what is in one, runs nothing of it, and needs no round trip."""

    def __init__(self, job_class: type[GuardedJob], connection: Redis, namespace: str) -> None:
        self._job_class = job_class
        self._connection = connection
        self._namespace = namespace

    def read(self, id: str, raw: Mapping[bytes, bytes]) -> Read:
        """The job and its request, or why it is refused."""
        refusal: TokenloomError | None = None
        data, function, kwargs = b"", None, None
        try:
            refuse_large(raw)
            data = inflate(raw.get(b"data", b""))
            function, kwargs = take_apart(data)
        except TokenloomError as error:
            refusal, data = error, b""  # nobody shall take it apart again, with other limits or none
        session = readable_session(kwargs)
        job, broken = self._restore(id, raw, data)
        if isinstance(function, str):
            job._func_name, job._instance, job._args = function, None, []
            job._kwargs = kwargs if isinstance(kwargs, dict) else {}
        refusal = refusal or broken
        elsewhere = self._of_another_namespace(job)
        if elsewhere is not None:
            refusal, session = elsewhere, None
        if refusal is None and len(id) > LONGEST_ID:
            message = f"job ids have at most {LONGEST_ID} characters here, this one has {len(id)}"
            refusal, session = TokenloomError.of("invalid", message, field="id", value=id, limit=LONGEST_ID), None
        request = None
        if refusal is None:
            try:
                self._check_callbacks(job)
                request = parse_request(function if isinstance(function, str) else shorten(function), kwargs)
            except TokenloomError as error:
                refusal = error
        if refusal is not None:
            job.retries_left = 0  # it would be refused again
            if job.strange_webhook():
                job.webhooks = []
        return Read(job, request, refusal, session)

    def _restore(self, id: str, raw: Mapping[bytes, bytes], data: bytes) -> tuple[GuardedJob, TokenloomError | None]:
        """RQ's job of the hash; of its few safe fields only when the others make no sense."""
        fields = {name: value for name, value in raw.items() if name not in _LEFT_OUT}
        fields[b"data"] = b"-"  # set below: restore() would inflate it without a limit
        problem: TokenloomError | None = None
        try:
            refuse_numbers(fields)
            job = self._new(id, fields)
            problem = strange_number(job) or strange_list(job)
        except TokenloomError as error:
            problem = error
        except Exception as error:  # dates, JSON, numbers, enums: RQ raises whatever they raise
            what = shorten(f"{type(error).__name__}: {error}".rstrip(": "))
            problem = TokenloomError.of("invalid", f"the job's hash has a field RQ cannot read: {what}")
        if problem is not None:
            kept = {name: fields[name] for name in (b"data", b"origin", b"worker_name") if readable(fields.get(name))}
            kept[b"status"] = b"started"
            kept[b"created_at"] = kept[b"started_at"] = utcformat(datetime.now(timezone.utc)).encode()
            job = self._new(id, kept)
        job.data = data
        return job, problem

    def _new(self, id: str, fields: Mapping[bytes, bytes]) -> GuardedJob:
        job = self._job_class(id, connection=self._connection, serializer=MsgpackSerializer)
        job.restore(fields)
        return job

    def _of_another_namespace(self, job: GuardedJob) -> TokenloomError | None:
        """Why the job is not for this worker: its producer looks for the events under other keys."""
        meta: Any = job.meta  # anything that msgpack can hold
        named = meta.get("namespace") if isinstance(meta, dict) else None
        if not isinstance(named, str) or named == self._namespace:
            return None
        message = (
            f"the job is of namespace {shorten(named, 80)!r}, and this worker serves {self._namespace!r}: give client"
            " and worker the same one (TOKENLOOM_NAMESPACE), or queues of their own"
        )
        return TokenloomError.of("invalid", message, field="namespace", value=named, limit=self._namespace)

    def _check_callbacks(self, job: GuardedJob) -> None:
        for which, name in job.callback_names().items():
            if name not in job.allowed:
                listed = ", ".join(sorted(job.allowed)) or "none"
                message = (
                    f"{which} {shorten(name, 80)!r} is not among the callbacks this worker allows"
                    f" (TOKENLOOM_CALLBACKS): {listed}"
                )
                raise TokenloomError.of("unknown_job", message, field=which, value=name, limit=listed)
        strange = job.strange_webhook()
        if strange is not None:
            raise TokenloomError.of("invalid", f"webhooks: {strange}", field="webhooks")


def readable(value: bytes | None) -> bool:
    """Whether there is a value, and it is text."""
    try:
        return value is not None and bool(value.decode())
    except UnicodeDecodeError:
        return False


def refuse_large(raw: Mapping[bytes, bytes]) -> None:
    """Raise TokenloomError when the claim script has left something out."""
    large = raw.get(b"tokenloom_large")
    if large is not None:
        what = repr(shorten(large.decode(errors="replace"), 80))
        message = f"the job's hash is too large: {what}; at most 256 fields of 262144 bytes are accepted"
        raise TokenloomError.of("invalid", message, field="hash", value=what)


def refuse_numbers(raw: Mapping[bytes, bytes]) -> None:
    """Raise TokenloomError for one of RQ's numbers that is none: RQ's own words would not say which."""
    for field in _NUMBERS:
        value = raw.get(field.encode())
        if value and not re.fullmatch(rb"-?[0-9]{1,40}", value):
            limit = f"an integer from -1 to {_MOST - 1}"
            shown = repr(shorten(value.decode(errors="replace"), 60))
            raise TokenloomError.of("invalid", f"{field}: {shown} is not accepted; {limit}", field=field, limit=limit)


def inflate(stored: bytes) -> bytes:
    """A job's data without RQ's compression, which is optional. Raises TokenloomError past the limit."""
    if not 0 < len(stored) <= MAX_STORED:
        raise too_large_or_missing()
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(stored, MAX_STORED)
    except zlib.error:
        return stored
    if unpacker.unconsumed_tail:
        raise too_large_or_missing()
    return data if unpacker.eof else stored


def too_large_or_missing() -> TokenloomError:
    """The claim script leaves out data past the limit, so that none and too much look alike here."""
    return TokenloomError.of(
        "invalid", f"the job's data is missing or larger than {MAX_STORED} bytes", field="data", limit=MAX_STORED
    )


def take_apart(data: bytes) -> tuple[object, object]:
    """Function name and keyword arguments of a job's data. Raises TokenloomError for anything but the two."""
    try:
        parts = decode(data, max_bytes=MAX_STORED, max_items=MAX_ITEMS, max_containers=MAX_CONTAINERS)
    except CodecError as error:
        pickled = " (it looks like pickle)" if data[:1] == b"\x80" and data[-1:] == b"." else ""
        message = f"the job's data is not acceptable msgpack{pickled}: {error}; enqueue with MsgpackSerializer"
        raise TokenloomError.of("invalid", message, field="data") from None
    if not isinstance(parts, list) or len(parts) != 4:
        raise TokenloomError.of(
            "invalid", "the job's data is not [function, null, args, kwargs]", field="data", value=parts
        )
    function, instance, args, kwargs = parts
    if instance is not None:
        raise TokenloomError.of("invalid", "methods of objects are not served", field="data", value=instance)
    if args not in ([], None):
        raise TokenloomError.of(
            "invalid", "arguments are given by name only", field="args", value=args, limit="no positional arguments"
        )
    return function, kwargs


def readable_session(kwargs: object) -> str | None:
    """The session a job names, if it is a valid id."""
    session = kwargs.get("session") if isinstance(kwargs, dict) else None
    return session if isinstance(session, str) and re.fullmatch(SESSION_ID_PATTERN, session) else None


def strange_number(job: GuardedJob) -> TokenloomError | None:
    """Why one of RQ's numbers in the job cannot be used, if so: Redis would refuse the job's end because of it."""
    for field, attribute in _NUMBERS.items():
        value: Any = getattr(job, attribute)
        if value is not None and not -1 <= value < _MOST:
            limit = f"-1 to {_MOST - 1}"
            message = f"{field}: {shorten(value, 80)} is not accepted; {limit}"
            return TokenloomError.of("invalid", message, field=field, value=value, limit=limit)
    return None


def strange_list(job: GuardedJob) -> TokenloomError | None:
    """Why one of RQ's lists in the job cannot be used, if so."""
    listed: list[tuple[str, Any]] = [
        ("retry_intervals", job.retry_intervals),
        ("repeat_intervals", job.repeat_intervals),
    ]
    for field, value in listed:
        plain = value is None or (isinstance(value, list) and all(type(x) is int and 0 <= x < _MOST for x in value))
        if not plain:
            return TokenloomError.of("invalid", f"{field}: a list of seconds is expected", field=field, value=value)
    needed: Any = job._dependency_ids
    if not isinstance(needed, list) or not all(isinstance(id, str) for id in needed):
        message = "dependency_ids: a list of job ids is expected"
        return TokenloomError.of("invalid", message, field="dependency_ids", value=needed)
    return None
