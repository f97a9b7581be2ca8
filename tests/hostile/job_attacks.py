"""Opens, clones, rewinds and closes with wrong fields; functions that are none of ours; arguments that are none."""

from __future__ import annotations

from typing import Any

import msgpack

from hostile.arena import EMPTY, JOBS, NOBODY, TARGET, Attack, payload
from hostile.words import CLONE, ENQUEUE, FIELDS, IDS, MSGPACK, SERVED, STEP, long


def job(function: str, error: str, **fields: Any) -> Attack:
    """A job of ours for the target."""
    return Attack(error, payload(JOBS + function, {"session": TARGET, **fields}))


def called(error: str, function: Any, session: str | None = TARGET, **kwargs: Any) -> Attack:
    """A job that names this function, with arguments that a step could have."""
    return Attack(error, payload(function, {"session": TARGET, **kwargs}), session=session)


def arguments(error: str, kwargs: Any, session: str | None = None) -> Attack:
    """A step with these for its named arguments."""
    return Attack(error, payload(JOBS + "step", kwargs), session=session)


OTHER_JOBS = {
    "opening what is open": job(
        "open",
        "[session_exists] session 'target' is open already: pass exist_ok=True to take it as it is, "
        "or choose another id",
    ),
    "a seed of -1": job("open", "[invalid] OpenRequest of a job: seed: -1 is not accepted; 0 or more", seed=-1),
    "a seed as a float": job(
        "open", "[invalid] OpenRequest of a job: seed: 1.0 is not accepted; expected an integer", seed=1.0
    ),
    "a seed as text": job(
        "open", "[invalid] OpenRequest of a job: seed: '7' is not accepted; expected an integer", seed="7"
    ),
    "exist_ok as a number": job(
        "open", "[invalid] OpenRequest of a job: exist_ok: 1 is not accepted; expected true or false", exist_ok=1
    ),
    "defaults that are wrong": job(
        "open",
        "[invalid] OpenRequest of a job: defaults.temperature: -1.0 is not accepted; 0 or more",
        exist_ok=True,
        defaults={"temperature": -1.0},
    ),
    "defaults as text": job(
        "open",
        "[invalid] OpenRequest of a job: defaults: 'greedy' is not accepted; expected a map",
        exist_ok=True,
        defaults="greedy",
    ),
    "1,025 targets": job(
        "clone",
        f"{CLONE}targets: ['c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8', 'c9', 'c10', 'c11', "
        f"'c12… is not accepted; at most 1024 items",
        targets=[f"c{i}" for i in range(1025)],
    ),
    "a clone onto itself": job(
        "clone", f"{CLONE}targets: every id must be different, and none the source's", targets=[TARGET]
    ),
    "a target twice": job(
        "clone", f"{CLONE}targets: every id must be different, and none the source's", targets=["c1", "c2", "c1"]
    ),
    "no targets": job("clone", f"{CLONE}targets: [] is not accepted; at least 1 item", targets=[]),
    "targets missing": job("clone", f"{CLONE}targets is missing"),
    "targets as text": job("clone", f"{CLONE}targets: 'c1' is not accepted; expected a list", targets="c1"),
    "targets as a map": job(
        "clone", f"{CLONE}targets: {{'c1': 1}} is not accepted; expected a list", targets={"c1": 1}
    ),
    "a target with braces": job(
        "clone", f"{CLONE}targets.1: '{{target}}' is not accepted; {IDS}", targets=["c1", "{target}"]
    ),
    "a target as a number": job("clone", f"{CLONE}targets.0: 5 is not accepted; expected text", targets=[5]),
    "a target of 10,000 letters": job(
        "clone", f"{CLONE}targets.0: {long('c')} is not accepted; {IDS}", targets=["c" * 10_000]
    ),
    "a target that is open": job("clone", "[session_exists] targets: session 'empty' is open already", targets=[EMPTY]),
    "seeds for other targets": job("clone", f"{CLONE}seeds: 2 given for 1 targets", targets=["c1"], seeds=[1, 2]),
    "seeds by the million": job(
        "clone", f"{CLONE}seeds.0: -1 is not accepted; 0 or more", targets=["c1"], seeds=[-1] * (1 << 20)
    ),
    "a clone of more than there is": job(
        "clone", "[invalid] upto: 5 is beyond the 4 tokens of session 'target'", targets=["c1"], upto=5
    ),
    "a clone of -1 tokens": job("clone", f"{CLONE}upto: -1 is not accepted; 0 or more", targets=["c1"], upto=-1),
    "a clone of 2^63 tokens": job(
        "clone", f"{CLONE}upto: 9223372036854775808 is not accepted; less than 2147483648", targets=["c1"], upto=2**63
    ),
    "a rewind to -1": job("rewind", "[invalid] RewindRequest of a job: to: -1 is not accepted; 0 or more", to=-1),
    "a rewind to -2^63": job(
        "rewind", "[invalid] RewindRequest of a job: to: -9223372036854775808 is not accepted; 0 or more", to=-(2**63)
    ),
    "a rewind past the end": job("rewind", "[invalid] to: 5 is beyond the 4 tokens of session 'target'", to=5),
    "a rewind to 2^64 - 1": job(
        "rewind",
        "[invalid] RewindRequest of a job: to: 18446744073709551615 is not accepted; less than 2147483648",
        to=2**64 - 1,
    ),
    "a rewind to 0.0": job(
        "rewind", "[invalid] RewindRequest of a job: to: 0.0 is not accepted; expected an integer", to=0.0
    ),
    "a rewind to a truth": job(
        "rewind", "[invalid] RewindRequest of a job: to: False is not accepted; expected an integer", to=False
    ),
    "a rewind to nowhere": job("rewind", "[invalid] RewindRequest of a job: to is missing"),
    "a rewind of nobody": Attack(
        "[no_such_session] session 'nobody' does not exist: open it first",
        payload(JOBS + "rewind", {"session": NOBODY, "to": 0}),
        session=NOBODY,
    ),
    "a close with more to say": job(
        "close", "[invalid] CloseRequest of a job: unknown field force; the fields are: v, session, tenant", force=True
    ),
    "a close of version 7": job(
        "close", "[unknown_version] CloseRequest of a job: wire version 7 is not supported; supported is 1", v=7
    ),
}

FUNCTIONS = {
    "os.system": called(f"[unknown_job] 'os.system' {SERVED}", "os.system", command="touch CANARY"),
    "subprocess.run": called(
        f"[unknown_job] 'subprocess.run' {SERVED}", "subprocess.run", args="touch CANARY", shell=True
    ),
    "builtins.eval": called(f"[unknown_job] 'builtins.eval' {SERVED}", "builtins.eval", source="open('CANARY', 'w')"),
    "builtins.exec": called(f"[unknown_job] 'builtins.exec' {SERVED}", "builtins.exec", source="open('CANARY', 'w')"),
    "a function of no name": called(f"[unknown_job] '' {SERVED}", ""),
    "nothing for a function": called(f"[unknown_job] 'None' {SERVED}", None),
    "a number for a function": called(f"[unknown_job] '5' {SERVED}", 5),
    "a list for a function": called(f"[unknown_job] \"['os.system']\" {SERVED}", ["os.system"]),
    "bytes for a function": called(
        f"[unknown_job] \"b'tokenloom.schemas.jobs.close'\" {SERVED}", b"tokenloom.schemas.jobs.close"
    ),
    "a function with a space behind it": called(
        f"[unknown_job] 'tokenloom.schemas.jobs.close ' {SERVED}", JOBS + "close "
    ),
    "a private function of ours": called(
        f"[unknown_job] 'tokenloom.schemas.jobs._wrong_worker' {SERVED}", JOBS + "_wrong_worker"
    ),
    "a module of ours": called(f"[unknown_job] 'tokenloom.schemas.jobs' {SERVED}", "tokenloom.schemas.jobs"),
    "a function of RQ's": called(f"[unknown_job] 'rq.job.Job.fetch' {SERVED}", "rq.job.Job.fetch"),
    "a function of 10 MB": called(f"[unknown_job] {long('f')} {SERVED}", "f" * (10 << 20)),
    "a function of a million parts": called(
        f"{MSGPACK}: more than 8192 arrays and maps at byte 8196{ENQUEUE}", [[]] * (1 << 20), None
    ),
}

ARGUMENTS = {
    "arguments as a list": arguments(f"{STEP}a map is expected, not list", [1, 2]),
    "arguments as nothing": arguments(f"{STEP}a map is expected, not NoneType", None),
    "arguments as text": arguments(f"{STEP}a map is expected, not str", "session=target"),
    "no arguments": arguments(f"{STEP}session is missing", {}),
    "an argument named by a number": arguments(
        f"{STEP}5: 5 is not accepted; Keys should be strings", {"session": TARGET, 5: 1}, TARGET
    ),
    "an argument of no name": arguments(f"{STEP}unknown field ''; {FIELDS}", {"session": TARGET, "": 1}, TARGET),
    "positional arguments": Attack(
        "[invalid] arguments are given by name only", msgpack.packb([JOBS + "close", None, [TARGET], {}]), session=None
    ),
    "positional arguments beside named": Attack(
        "[invalid] arguments are given by name only",
        msgpack.packb([JOBS + "close", None, [1], {"session": TARGET}]),
        session=None,
    ),
    "positional arguments as a map": Attack(
        "[invalid] arguments are given by name only",
        msgpack.packb([JOBS + "close", None, {"session": TARGET}, {}]),
        session=None,
    ),
    "a method of an object": Attack(
        "[invalid] methods of objects are not served",
        msgpack.packb([JOBS + "close", "an object", [], {"session": TARGET}]),
        session=None,
    ),
}

ATTACKS = OTHER_JOBS | FUNCTIONS | ARGUMENTS
