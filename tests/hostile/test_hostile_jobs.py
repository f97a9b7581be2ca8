"""Every hostile job ends with its own error and changes nothing: not the stream beside it, not a key, not a session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from hostile import byte_attacks, job_attacks, rq_attacks, step_attacks
from hostile.arena import JOBS, NOBODY, TARGET, Arena, Attack, enqueue, payload

ATTACKS: dict[str, Attack] = {
    **{f"step: {name}": attack for name, attack in step_attacks.ATTACKS.items()},
    **{f"job: {name}": attack for name, attack in job_attacks.ATTACKS.items()},
    **{f"bytes: {name}": attack for name, attack in byte_attacks.ATTACKS.items()},
    **{f"hash: {name}": attack for name, attack in rq_attacks.ATTACKS.items()},
}
PICKLES = list(byte_attacks.pickles(Path()))
_NUMBERS = {name: number for number, name in enumerate([*ATTACKS, *PICKLES, *rq_attacks.HARMLESS, *rq_attacks.ORIGINS])}


def suffer(arena: Arena, name: str, attack: Attack) -> None:
    """One attack, from its arrival until everything is as it was."""
    id = f"attack-{_NUMBERS[name]}"
    before = arena.keys()
    enqueue(arena.redis, id, attack.data, attack.fields)
    status = arena.ended(id)
    error = arena.error_of(id)
    assert status == "failed"
    if attack.error.endswith(": ..."):  # then Python's own words follow, which change between versions
        assert error.startswith(attack.error.removesuffix("..."))
    else:
        assert error == attack.error
    if attack.session is not None:
        assert arena.channel_error(attack.session, id) == error
    arena.bystander.next_round()
    assert arena.log_of(TARGET) == arena.log
    of_nobody = {f"tokenloom:{{{NOBODY}}}:{part}" for part in ("steps", "finished", "events")}
    # What a job names and nobody opened has an owner for a while, and a channel that says why it failed: these expire.
    passing = of_nobody if attack.session == NOBODY else arena.claimed()
    arena.settled(before | passing | {f"rq:job:{id}", f"rq:results:{id}"})
    arena.job(id).delete()
    arena.settled(before | passing)
    assert all(0 < arena.redis.ttl(key) <= 600 for key in passing)
    if passing:
        arena.redis.delete(*passing)
    arena.alive()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_job_ends_with_its_error_and_changes_nothing(arena: Arena, name: str) -> None:
    suffer(arena, name, ATTACKS[name])


@pytest.mark.parametrize("name", PICKLES)
def test_pickle_is_refused_and_never_loaded(arena: Arena, name: str, canary: Path) -> None:
    suffer(arena, name, byte_attacks.pickles(canary)[name])
    assert not list(canary.iterdir())


@pytest.mark.parametrize("name", rq_attacks.HARMLESS)
def test_meta_without_sense_is_as_good_as_none(arena: Arena, name: str) -> None:
    id = f"attack-{_NUMBERS[name]}"
    value = rq_attacks.HARMLESS[name]
    before = arena.keys()
    enqueue(
        arena.redis,
        id,
        payload(JOBS + "open", {"session": TARGET, "exist_ok": True}),
        {"meta": value if isinstance(value, bytes) else msgpack.packb(value)},
    )
    assert arena.ended(id) == "finished"
    arena.bystander.next_round()
    arena.settled(before | {f"rq:job:{id}", f"rq:results:{id}"})
    arena.job(id).delete()
    arena.alive()


@pytest.mark.parametrize("name", rq_attacks.ORIGINS)
def test_a_jobs_origin_is_where_it_was_found(arena: Arena, name: str) -> None:
    id = f"attack-{_NUMBERS[name]}"
    before = arena.keys()
    done = payload(JOBS + "open", {"session": TARGET, "exist_ok": True})
    for data, end in ((done, "finished"), (b"\xc1", "failed")):
        enqueue(arena.redis, id + end, data, {"origin": rq_attacks.ORIGINS[name]})
        assert arena.ended(id + end) == end
        arena.bystander.next_round()
        arena.settled(before | {f"rq:job:{id}{end}", f"rq:results:{id}{end}"})
        assert arena.redis.zscore(f"rq:{end}:steps", id + end) is not None
        arena.job(id + end).delete()
        arena.redis.zrem(f"rq:{end}:steps", id + end)
    arena.alive()


BAD_IDS = ["a b", "a}{b", "a\nb", "a\0b", "a:b", "å", "", "x" * 10_000, "../../etc", "a*"]


@pytest.mark.parametrize("id", BAD_IDS, ids=[f"{i}" for i in range(len(BAD_IDS))])
def test_an_id_that_rq_would_not_make_is_dropped_from_the_queue(arena: Arena, id: str) -> None:
    before = arena.keys()
    enqueue(arena.redis, id, payload(JOBS + "close", {"session": TARGET}))
    arena.bystander.next_round()
    assert arena.redis.hget(f"rq:job:{id}", "status") == b"queued", "it was touched"
    arena.redis.delete(f"rq:job:{id}")
    arena.settled(before)
    dropped = [record for record in arena.records() if "dropped id" in record["message"]]
    assert dropped[-1]["message"].startswith(f"tokenloom: dropped id {id[:200]!r} from a queue")
    arena.alive()


def test_an_id_too_long_for_events_is_refused(arena: Arena) -> None:
    id = "x" * 129
    enqueue(arena.redis, id, payload(JOBS + "close", {"session": TARGET}))
    assert arena.ended(id) == "failed"
    assert arena.error_of(id) == "[invalid] job ids have at most 128 characters here, this one has 129"
    arena.job(id).delete()


def test_a_steps_id_may_be_anothers_in_another_session(arena: Arena) -> None:
    step = {"generation": {"max_tokens": 2, "ignore_eos": True, "temperature": 0.0}, "text": "hi"}
    results: list[Any] = []
    for session in ("first", "second"):
        arena.run(f"open-{session}", payload(JOBS + "open", {"session": session, "seed": 1}))
        enqueue(arena.redis, "same", payload(JOBS + "step", {"session": session, **step}))
        assert arena.ended("same") == "finished"
        results.append(arena.job("same").return_value())
        arena.job("same").delete()
    assert [result["session"] for result in results] == ["first", "second"]
    assert results[0]["tokens"] == results[1]["tokens"]
    for session in ("first", "second"):
        arena.run(f"close-{session}", payload(JOBS + "close", {"session": session}))


def test_a_running_steps_id_taken_for_another_session_ends_in_an_error_and_stops_neither(arena: Arena) -> None:
    for session in ("third", "fourth"):
        arena.run(f"open-{session}", payload(JOBS + "open", {"session": session, "seed": 1}))
    long = {"session": "third", "text": "hi", "generation": {"max_tokens": 400, "ignore_eos": True}}
    meta = {"meta": msgpack.packb({"sessions": ["third"]})}
    enqueue(arena.redis, "taken", payload(JOBS + "step", long), meta)
    while not arena.log_of("third"):
        time.sleep(0.001)
    meta = {"meta": msgpack.packb({"sessions": ["fourth"]})}
    enqueue(arena.redis, "taken", payload(JOBS + "step", long | {"session": "fourth"}), meta)
    for session in ("third", "fourth"):
        short = {"session": session, "text": "hi", "generation": {"max_tokens": 2, "ignore_eos": True}}
        arena.run(f"after-{session}", payload(JOBS + "step", short))
    assert arena.ended("taken") in ("finished", "failed")
    arena.bystander.next_round()
    arena.alive()
