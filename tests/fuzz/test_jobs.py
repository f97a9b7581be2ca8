"""Whatever msgpack can carry and whatever a hash can hold: a request, or the one kind of error; nothing else."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from rq.job import Job

from tokenloom.schemas import TokenloomError, parse_request
from tokenloom.schemas.requests import REQUESTS, Request
from tokenloom.schemas.validate import decode_event, decode_record
from tokenloom.worker.jobs.guarded import guarded
from tokenloom.worker.jobs.reading import Reader, inflate, take_apart

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["s", "target", "a b", 0, 1, -1, 2**24, 2**31, 1.0, "1"]),
)
NAMES = st.one_of(
    st.sampled_from(sorted({name for model in REQUESTS.values() for name in model.model_fields})),
    st.sampled_from(["max_tokens", "temperature", "logit_bias", "stop", "role", "content", "1"]),
    st.text(max_size=8),
    st.integers(-5, 2**40),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6), max_leaves=20
)
FUNCTIONS = st.sampled_from(sorted(REQUESTS)) | st.text(max_size=20)
#: A request that is good, to put one bad value into.
GOOD: dict[str, Any] = {
    "session": "s",
    "tokens": [1, 2],
    "generation": {"max_tokens": 1, "temperature": 0.5, "logit_bias": {1: 1.0}},
    "targets": ["t"],
    "to": 0,
}
FIELDS = (
    b"data timeout result_ttl failure_ttl ttl status origin created_at enqueued_at started_at description meta"
    b" retries_left retry_intervals repeats_left repeat_intervals dependency_ids dependency_id webhooks"
    b" success_callback_name failure_callback_name success_callback_timeout enqueue_at_front group_id"
    b" allow_dependency_failures worker_name rate_limit_key rate_limit_concurrency tokenloom_deaths tokenloom_large"
    b" tokenloom_stop tokenloom_past"
).split()
BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"queued", b"1", b"-1", b"[]", b"{}", b"null", b"[1]", b'["x"]', b"2026-01-01T00:00:00Z"]),
    VALUES.map(lambda value: msgpack.packb(value)),
)


def reader() -> Reader:
    """Needs no server."""
    return Reader(guarded(Job, frozenset()), Redis(port=1), "tokenloom")


@settings(max_examples=600, deadline=None)
@given(FUNCTIONS, VALUES)
def test_any_value_is_a_request_or_a_tokenloom_error(function: str, value: Any) -> None:
    with contextlib.suppress(TokenloomError):
        assert isinstance(parse_request(function, value), Request)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)), st.sampled_from(sorted(GOOD)), st.text(max_size=12) | NAMES, VALUES)
def test_one_bad_value_in_a_good_request(function: str, name: str, inner: Any, value: Any) -> None:
    fields = {key: GOOD[key] for key in GOOD if key in REQUESTS[function].model_fields}
    fields[name] = {**fields[name], inner: value} if isinstance(fields.get(name), dict) else value
    message = ""
    try:
        parse_request(function, fields)
    except TokenloomError as error:
        message = str(error)
    assert len(message) < 1000


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200) | VALUES.map(lambda value: msgpack.packb(value)), st.booleans())
def test_any_data_is_a_job_or_a_tokenloom_error(data: bytes, compressed: bool) -> None:
    with contextlib.suppress(TokenloomError):
        take_apart(inflate(zlib.compress(data) if compressed else data))


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.binary(max_size=8), BYTES, max_size=12), BYTES)
def test_any_hash_is_read(raw: dict[bytes, bytes], data: bytes) -> None:
    read = reader().read("id", {b"data": data, **raw})
    assert (read.request is None) == (read.refusal is not None)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_event_or_record_is_one_or_a_tokenloom_error(value: Any) -> None:
    data = msgpack.packb(value)
    for decode in (decode_event, decode_record):
        with contextlib.suppress(TokenloomError):
            decode(data)
