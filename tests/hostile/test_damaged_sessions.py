"""Nonsense in a session's keys, whoever wrote it, ends that session's jobs, and no others."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest

from hostile.arena import JOBS, KEYS, Arena, enqueue, payload

Fields = dict[str, str | bytes]

HASHES: dict[str, Fields] = {
    "a length in words": {"length": "abc"},
    "a length below zero": {"length": "-5"},
    "a length of 10^30": {"length": str(10**30)},
    "a seed in words": {"seed": "x"},
    "a seed of 10^30": {"seed": str(10**30)},
    "a state of no meaning": {"state": "weird"},
    "defaults that are no msgpack": {"defaults": b"\xc1"},
    "defaults out of their range": {"defaults": msgpack.packb({"max_tokens": -5})},
    "a parent that is not UTF-8": {"parent": b"\xff"},
    "a model that is not UTF-8": {"model": b"\xff"},
}


def step(session: str, tokens: int = 1) -> bytes:
    settings = {"max_tokens": tokens, "ignore_eos": True}
    return payload(JOBS + "step", {"session": session, "text": "hi", "generation": settings})


def damaged(session: str) -> str:
    return f"[internal] session {session!r}: Redis holds of it what no worker has written; delete or repair its keys"


def good(arena: Arena) -> dict[Any, Any]:
    """A session's hash as it should be."""
    model: Any = arena.redis.hget(KEYS.session("target"), "model")
    return {"v": 1, "state": "open", "model": model, "seed": "1", "length": 0}


def finish(arena: Arena, session: str, id: str) -> None:
    arena.bystander.next_round()
    arena.alive()
    arena.job(id).delete()
    left = [key for key in arena.keys() if f"{{{session}}}" in key]  # noqa: SIM118 - no mapping
    if left:
        arena.redis.delete(*left)


@pytest.mark.parametrize("name", HASHES)
def test_a_hash_of_nonsense_fails_its_jobs(arena: Arena, name: str) -> None:
    session = f"d{list(HASHES).index(name)}"
    arena.redis.hset(KEYS.session(session), mapping=good(arena) | HASHES[name])
    enqueue(arena.redis, session, step(session))
    status = arena.ended(session)
    if name == "a length of 10^30":  # the log itself decides
        assert status == "finished"
    else:
        assert (status, arena.error_of(session)) == ("failed", damaged(session))
        assert not arena.redis.hexists(KEYS.session(session), "owner")
    finish(arena, session, session)


def test_an_epoch_of_nonsense_fails_its_jobs(arena: Arena) -> None:
    arena.redis.hset(KEYS.session("e"), mapping=good(arena) | {"epoch": "x"})
    enqueue(arena.redis, "e", step("e"))
    assert arena.ended("e") == "failed"
    assert arena.error_of("e") == "[internal] session 'e': its key holds something else than a session"
    finish(arena, "e", "e")


@pytest.mark.parametrize("key", ["session", "log"])
def test_a_key_of_another_type_fails_its_jobs(arena: Arena, key: str) -> None:
    session = f"k-{key}"
    if key == "log":
        arena.redis.hset(KEYS.session(session), mapping=good(arena))
    arena.redis.rpush(getattr(KEYS, key)(session), "x")
    enqueue(arena.redis, session, step(session))
    assert arena.ended(session) == "failed"
    other = f"[internal] session {session!r}: its key holds something else than a session"
    assert arena.error_of(session) == (damaged(session) if key == "log" else other)
    finish(arena, session, session)


@pytest.mark.parametrize("kind", ["set", "rpush", "sadd"])
def test_cancels_of_another_type_cancel_nothing(arena: Arena, kind: str) -> None:
    session = f"c-{kind}"
    getattr(arena.redis, kind)(KEYS.cancels(session), session)
    arena.run(f"open-{session}", payload(JOBS + "open", {"session": session, "seed": 1}))
    enqueue(arena.redis, session, step(session, 5))
    assert arena.ended(session) == "finished"
    assert len(arena.log_of(session)) > 5
    finish(arena, session, session)


@pytest.mark.parametrize("owner", [b"nonsense", b"\xff#1", b"ghost#1", b"#", b"o" * 10_000])
def test_an_owner_of_nonsense_owns_nothing(arena: Arena, owner: bytes) -> None:
    arena.redis.hset(KEYS.session("o"), mapping=good(arena) | {"owner": owner})
    enqueue(arena.redis, "o", step("o"))
    assert arena.ended("o") == "finished"
    finish(arena, "o", "o")


@pytest.mark.parametrize("name", ["a length in words", "a state of no meaning"])
def test_nonsense_written_while_a_step_runs_ends_that_step(arena: Arena, name: str) -> None:
    session = f"r{list(HASHES).index(name)}"
    arena.run(f"open-{session}", payload(JOBS + "open", {"session": session, "seed": 1}))
    enqueue(arena.redis, session, step(session, 3000))
    while not arena.log_of(session):
        time.sleep(0.001)
    arena.redis.hset(KEYS.session(session), mapping=HASHES[name])
    assert arena.ended(session) == "failed"
    assert arena.error_of(session) == damaged(session)
    finish(arena, session, session)
