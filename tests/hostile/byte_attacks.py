"""Data that is no job: pickle, bombs, bad msgpack."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgpack

from hostile.arena import JOBS, TARGET, Attack, payload
from hostile.words import ENQUEUE, MSGPACK


class Detonator:
    """Unpickling it leaves a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


def data(error: str, raw: bytes) -> Attack:
    return Attack(error, raw, session=None)


CLOSE = payload(JOBS + "close", {"session": TARGET})


def close_with(value: bytes) -> bytes:
    """A close of the target with one more argument, whose encoding is ``value``."""
    head: bytes = b"\x94" + msgpack.packb(JOBS + "close") + b"\xc0\x90"
    return head + b"\x82\xa7session\xa6target\xa1x" + value


def pickles(canary: Path) -> dict[str, Attack]:
    """Pickle in every dress."""
    bomb = pickle.dumps((JOBS + "close", None, (), {"session": Detonator(str(canary / "pickle"))}))
    zero = pickle.dumps(Detonator(str(canary / "zero")), 0)
    looks = f"{MSGPACK} (it looks like pickle): {len(bomb) - 1} bytes follow the object, which ends at byte 1{ENQUEUE}"
    follow = f"{MSGPACK}: {len(zero) - 1} bytes follow the object, which ends at byte 1{ENQUEUE}"
    unknown = "[invalid] CloseRequest of a job: unknown field x; the fields are: v, session, tenant"
    return {
        "pickle": data(looks, bomb),
        "pickle as RQ stores it": data(looks, zlib.compress(bomb)),
        "pickle of protocol 0": data(follow, zero),
        "pickle inside of msgpack": Attack(unknown, close_with(msgpack.packb(bomb))),
    }


ATTACKS = {
    "no data": data("[invalid] the job's data is missing or larger than 16778240 bytes", b""),
    "text": data(f"{MSGPACK}: 4 bytes follow the object, which ends at byte 1{ENQUEUE}", b"hello"),
    "JSON": data(
        f"{MSGPACK}: 64 bytes follow the object, which ends at byte 1{ENQUEUE}",
        b'["tokenloom.schemas.jobs.close", null, [], {"session": "target"}]',
    ),
    "zeros": data(f"{MSGPACK}: 999 bytes follow the object, which ends at byte 1{ENQUEUE}", bytes(1000)),
    "half a job": data(f"{MSGPACK}: cut short at byte 45{ENQUEUE}", CLOSE[:-3]),
    "a job and a half": data(f"{MSGPACK}: 48 bytes follow the object, which ends at byte 48{ENQUEUE}", CLOSE + CLOSE),
    "17 MB": data("[invalid] the job's data is missing or larger than 16778240 bytes", bytes(17 << 20)),
    "a bomb of 256 MB": data(
        "[invalid] the job's data is missing or larger than 16778240 bytes", zlib.compress(bytes(1 << 28), 9)
    ),
    "half a bomb": data(
        f"{MSGPACK}: 1028 bytes follow the object, which ends at byte 1{ENQUEUE}", zlib.compress(bytes(1 << 20))[:-10]
    ),
    "a bomb in a bomb": data(
        f"{MSGPACK}: 1038 bytes follow the object, which ends at byte 1{ENQUEUE}",
        zlib.compress(zlib.compress(bytes(1 << 20))),
    ),
    "a list that promises 2^32 - 1": data(
        f"{MSGPACK}: byte 0 promises 4294967295 objects; only 0 bytes follow{ENQUEUE}", b"\xdd\xff\xff\xff\xff"
    ),
    "a map that promises 2^32 - 1": data(
        f"{MSGPACK}: the map at byte 0 has 4294967295 entries; the limit is 8192{ENQUEUE}", b"\xdf\xff\xff\xff\xff"
    ),
    "text that promises 2^32 - 1": data(
        f"{MSGPACK}: byte 0 promises 4294967295 bytes, 1 are there{ENQUEUE}", b"\xdb\xff\xff\xff\xffx"
    ),
    "bytes that promise 2^32 - 1": data(
        f"{MSGPACK}: byte 0 promises 4294967295 bytes, 1 are there{ENQUEUE}", b"\xc6\xff\xff\xff\xffx"
    ),
    "promises within promises": data(
        f"{MSGPACK}: byte 0 promises 65535 objects; only 42 bytes follow{ENQUEUE}", b"\xdc\xff\xff" * 15
    ),
    "lists 100,000 deep": data(
        f"{MSGPACK}: nested deeper than 16 levels at byte 16{ENQUEUE}", b"\x91" * 100_000 + b"\xc0"
    ),
    "maps 100,000 deep": data(
        f"{MSGPACK}: nested deeper than 16 levels at byte 48{ENQUEUE}", b"\x81\xa1x" * 100_000 + b"\xc0"
    ),
    "lists 100,000 deep in an argument": data(
        f"{MSGPACK}: nested deeper than 16 levels at byte 64{ENQUEUE}", close_with(b"\x91" * 100_000 + b"\xc0")
    ),
    "16 million empty maps": data(
        f"{MSGPACK}: 16777201 values by byte 0; the limit is 1114112{ENQUEUE}",
        b"\xdd" + struct.pack(">I", (1 << 24) - 16) + b"\x80" * ((1 << 24) - 16),
    ),
    "16 million small numbers": data(
        f"{MSGPACK}: 16777217 values by byte 0; the limit is 1114112{ENQUEUE}",
        zlib.compress(b"\xdd" + struct.pack(">I", 1 << 24) + bytes(1 << 24)),
    ),
    "a map of 70,000": data(
        f"{MSGPACK}: the map at byte 50 has 70000 entries; the limit is 8192{ENQUEUE}",
        close_with(msgpack.packb(dict.fromkeys(range(70000), 0))),
    ),
    "an extension": data(
        f"{MSGPACK}: byte 50 begins an extension type, which is not accepted{ENQUEUE}",
        close_with(msgpack.packb(msgpack.ExtType(5, b"12345"))),
    ),
    "an extension of 2^32 - 1": data(
        f"{MSGPACK}: byte 50 begins an extension type, which is not accepted{ENQUEUE}",
        close_with(b"\xc9\xff\xff\xff\xff\x05"),
    ),
    "a timestamp": data(
        f"{MSGPACK}: byte 50 begins an extension type, which is not accepted{ENQUEUE}",
        close_with(msgpack.packb(datetime.now(timezone.utc), datetime=True)),
    ),
    "a byte msgpack does not use": data(
        f"{MSGPACK}: byte 50 begins an unused byte code, which is not accepted{ENQUEUE}", close_with(b"\xc1")
    ),
    "text that is not UTF-8": data(
        f"{MSGPACK}: text is not valid UTF-8: invalid start byte at byte 0 of it{ENQUEUE}",
        close_with(b"\xa4\xff\xfe\x80x"),
    ),
    "half of a surrogate pair": data(
        f"{MSGPACK}: text is not valid UTF-8: invalid continuation byte at byte 0 of it{ENQUEUE}",
        close_with(b"\xa3\xed\xa0\x80"),
    ),
    "a session that is not UTF-8": data(
        f"{MSGPACK}: text is not valid UTF-8: invalid continuation byte at byte 0 of it{ENQUEUE}",
        b"\x94" + msgpack.packb(JOBS + "close") + b"\xc0\x90\x81\xa7session\xa2\xc3\x28",
    ),
    "an argument twice": data(
        f"{MSGPACK}: map key 'session' comes twice{ENQUEUE}",
        b"\x94" + msgpack.packb(JOBS + "close") + b"\xc0\x90" + b"\x82" + (b"\xa7session" + b"\xa6target") * 2,
    ),
    "an argument named by bytes": data(
        f"{MSGPACK}: a map key is text or an integer, not bytes{ENQUEUE}", close_with(b"\x81\xc4\x01k\x01")
    ),
    "an argument named by a list": data(
        f"{MSGPACK}: a map key is text or an integer, not list{ENQUEUE}", close_with(b"\x81\x91\x01\x01")
    ),
    "an argument named by nothing": data(
        f"{MSGPACK}: a map key is text or an integer, not NoneType{ENQUEUE}", close_with(b"\x81\xc0\x01")
    ),
    "a map for a job": data(
        "[invalid] the job's data is not [function, null, args, kwargs]", msgpack.packb({"function": JOBS + "close"})
    ),
    "text for a job": data(
        "[invalid] the job's data is not [function, null, args, kwargs]", msgpack.packb(JOBS + "close")
    ),
    "three parts": data(
        "[invalid] the job's data is not [function, null, args, kwargs]",
        msgpack.packb([JOBS + "close", None, {"session": TARGET}]),
    ),
    "five parts": data(
        "[invalid] the job's data is not [function, null, args, kwargs]",
        msgpack.packb([JOBS + "close", None, [], {"session": TARGET}, None]),
    ),
}
