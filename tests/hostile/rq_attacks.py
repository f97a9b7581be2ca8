"""Good jobs in bad hashes: what RQ reads besides a job's data."""

from __future__ import annotations

import json
from typing import Any

import msgpack

from hostile.arena import JOBS, TARGET, Attack, payload
from hostile.words import CALLBACKS_ALLOWED, HOSTS_CALLED, INTEGERS, LARGE, LARGEST, UNREADABLE

STEP = payload(JOBS + "step", {"session": TARGET, "text": "hi", "generation": {"max_tokens": 1}})


def hashed(error: str, session: str | None = TARGET, **fields: str | bytes) -> Attack:
    """A good step in a hash with these fields."""
    return Attack(error, STEP, fields, session)


def meta(error: str, value: Any, session: str | None = TARGET) -> Attack:
    """A good step with this for its meta."""
    return hashed(error, session, meta=value if isinstance(value, bytes) else msgpack.packb(value))


def webhook(**fields: Any) -> str:
    return json.dumps([{"url": "http://127.0.0.1:9/", "job_status": "failed", "timeout": 1, **fields}])


CALLBACKS = {
    "on success os.getcwd": hashed(
        f"[unknown_job] success_callback 'os.getcwd'{CALLBACKS_ALLOWED}", success_callback_name="os.getcwd"
    ),
    "on failure os.abort": hashed(
        f"[unknown_job] failure_callback 'os.abort'{CALLBACKS_ALLOWED}", failure_callback_name="os.abort"
    ),
    "on stopped os.abort": hashed(
        f"[unknown_job] stopped_callback 'os.abort'{CALLBACKS_ALLOWED}", stopped_callback_name="os.abort"
    ),
    "a callback of 1 MB": hashed(
        f"{LARGE}'success_callback_name'; {LARGEST}", None, success_callback_name="c" * (1 << 20)
    ),
    "a callback that is not UTF-8": hashed(
        f"{UNREADABLE}UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        success_callback_name=b"\xff\xfe",
    ),
    "a callback with no limit": hashed(
        "[invalid] success_callback_timeout: 1099511627776 is not accepted; -1 to 2147483647",
        success_callback_timeout=str(2**40),
    ),
    "a callback's limit in words": hashed(
        f"[invalid] success_callback_timeout: 'soon' is not accepted{INTEGERS}", success_callback_timeout="soon"
    ),
}

WEBHOOKS = {
    "a webhook": hashed(f"[invalid] webhooks: host '127.0.0.1'{HOSTS_CALLED}", webhooks=webhook()),
    "a webhook that takes for ever": hashed(
        f"[invalid] webhooks: host '127.0.0.1'{HOSTS_CALLED}", webhooks=webhook(timeout=10**9)
    ),
    "a webhook to the cloud's secrets": hashed(
        f"[invalid] webhooks: host '169.254.169.254'{HOSTS_CALLED}",
        webhooks=webhook(url="http://169.254.169.254/latest/"),
    ),
}

NUMBERS = {
    "a timeout in words": hashed(f"[invalid] timeout: 'soon' is not accepted{INTEGERS}", timeout="soon"),
    "a timeout of 2^63": hashed(
        "[invalid] timeout: 9223372036854775808 is not accepted; -1 to 2147483647", timeout=str(2**63)
    ),
    "a timeout of 10^30": hashed(
        "[invalid] timeout: 1000000000000000000000000000000 is not accepted; -1 to 2147483647", timeout=str(10**30)
    ),
    "a timeout of -5": hashed("[invalid] timeout: -5 is not accepted; -1 to 2147483647", timeout="-5"),
    "a timeout of 10,000 digits": hashed(
        f"[invalid] timeout: '99999999999999999999999999999999999999999999999999999999999…' is not accepted{INTEGERS}",
        timeout="9" * 10_000,
    ),
    "a result_ttl of 10^30": hashed(
        "[invalid] result_ttl: 1000000000000000000000000000000 is not accepted; -1 to 2147483647",
        result_ttl=str(10**30),
    ),
    "a result_ttl of -7": hashed("[invalid] result_ttl: -7 is not accepted; -1 to 2147483647", result_ttl="-7"),
    "a failure_ttl that is no number": hashed(
        f"[invalid] failure_ttl: 'nan' is not accepted{INTEGERS}", failure_ttl="nan"
    ),
    "retries without end": hashed(
        "[invalid] retries_left: 9223372036854775808 is not accepted; -1 to 2147483647", retries_left=str(2**63)
    ),
    "-5 retries": hashed("[invalid] retries_left: -5 is not accepted; -1 to 2147483647", retries_left="-5"),
    "intervals of retries in words": hashed(
        "[invalid] retry_intervals: a list of seconds is expected", retries_left="1", retry_intervals='["soon"]'
    ),
    "intervals of retries as a number": hashed(
        "[invalid] retry_intervals: a list of seconds is expected", retries_left="1", retry_intervals="5"
    ),
    "intervals of retries 100,000 deep": hashed(
        f"{UNREADABLE}RecursionError: ...",
        retry_intervals="[" * 100_000,
    ),
    "repeats without end": hashed(
        "[invalid] repeats_left: 1099511627776 is not accepted; -1 to 2147483647", repeats_left=str(2**40)
    ),
    "a date of yesterday": hashed(
        f"{UNREADABLE}ValueError: time data 'yesterday' does not match format '%Y-%m-%dT%H:%M:%SZ'",
        created_at="yesterday",
    ),
    "a date in the year 10^9": hashed(
        f"{UNREADABLE}ValueError: time data '1000000000-01-01T00:00:00.0Z' does not match format '%Y-%m-%dT%H:%M:%SZ'",
        enqueued_at="1000000000-01-01T00:00:00.0Z",
    ),
    "dependencies that are no list": hashed(
        "[invalid] dependency_ids: a list of job ids is expected", dependency_ids="5"
    ),
    "dependencies that are no JSON": hashed(
        f"{UNREADABLE}JSONDecodeError: ...",
        dependency_ids="{",
    ),
    "at the front, maybe": hashed(
        f"{UNREADABLE}ValueError: invalid literal for int() with base 10: b'maybe'", enqueue_at_front="maybe"
    ),
    "a description that is not UTF-8": hashed(
        f"{UNREADABLE}UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        description=b"\xff\xfe",
    ),
    "a field of 1 MB": hashed(f"{LARGE}'timeout'; {LARGEST}", None, timeout="1" * (1 << 20)),
    "10,000 fields": hashed(f"{LARGE}'10009 fields'; {LARGEST}", None, **{f"f{i}": "x" for i in range(10_000)}),
}

METAS = {
    "meta of 1 MB": meta(f"{LARGE}'meta'; {LARGEST}", {"x": "y" * (1 << 20)}, None),
    "meta that names another session": meta(
        "[invalid] meta.sessions names bystander, the job itself target", {"sessions": ["bystander"]}, None
    ),
    "meta that names nobody of ours": meta(
        "[invalid] meta.sessions names c1, c2, the job itself target", {"sessions": ["c1", "c2"]}, None
    ),
    "meta that names the wrong one first": meta(
        "[invalid] meta.sessions names bystander, empty, the job itself target",
        {"sessions": ["bystander", "empty"]},
        None,
    ),
}

ORIGINS = {
    "an origin that is not UTF-8": b"\xff\xfe",
    "another queue for an origin": b"other",
    "an origin with a line break": b"steps\nother",
    "an origin of 100 KB": b"o" * 100_000,
}

ATTACKS = CALLBACKS | WEBHOOKS | NUMBERS | METAS

#: Meta that makes no sense is as good as none: the step runs.
HARMLESS: dict[str, Any] = {
    "10,000 sessions": {"sessions": [f"s{i}" for i in range(10_000)]},
    "sessions that are no list": {"sessions": {"target": 1}},
    "no sessions": {"sessions": []},
    "sessions that are none": {"sessions": ["a b", "{c}"]},
    "sessions by numbers": {"sessions": [1, 2]},
    "a list": ["target"],
    "a number": 5,
    "bytes that are no msgpack": b"\xc1\xc1",
    "a promise": b"\xdf\xff\xff\xff\xff",
    "100,000 levels": b"\x91" * 100_000,
    "200 KB": {"x": "y" * 200_000},
}
