"""Cells are a cache: eviction, sharing, preemption and rebuilding never change a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from rig import Rig

from tokenloom.native_ext.engine import Engine
from tokenloom.native_ext.single import SingleSequence
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, OpenRequest, RewindRequest, StepRequest

MakeRig = Callable[..., Rig]


def step(session: str, tokens: list[int] | None = None, most: int = 8) -> StepRequest:
    generation = Generation(max_tokens=most, temperature=1.0, ignore_eos=True)
    return StepRequest(session=session, tokens=tokens, generation=generation)


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 7919 + i * 31) % 200 + 1 for i in range(length)]


def test_idle_sessions_lose_their_cells_least_recently_used_first(make_rig: MakeRig) -> None:
    rig = make_rig(pages=6)
    for index in range(4):
        rig.run(OpenRequest(session=f"s{index}", seed=1), step(f"s{index}", prompt(index, 100)))
    resident = {name for name, session in rig.cycle.table.sessions.items() if session.sequence is not None}
    assert resident == {"s1", "s2", "s3"}
    assert rig.cycle.residency.evictions == 1


def test_an_evicted_session_is_rebuilt_and_goes_on_as_if_nothing_had_been(make_rig: MakeRig) -> None:
    rig = make_rig(pages=6)
    roomy = make_rig(worker="V")
    for index in range(4):
        for where, name in ((rig, f"s{index}"), (roomy, f"r{index}")):
            where.run(OpenRequest(session=name, seed=index), step(name, prompt(index, 100)))
    for index in range(4):
        (short,), (long,) = rig.run(step(f"s{index}")), roomy.run(step(f"r{index}"))
        assert short.tokens == long.tokens


def test_more_running_steps_than_cells_all_end_right(make_rig: MakeRig) -> None:
    rig, roomy = make_rig(pages=5), make_rig(worker="V")
    names = [f"s{i}" for i in range(6)]
    rig.run(*(OpenRequest(session=name, seed=i) for i, name in enumerate(names)))
    tight = rig.run(*(step(name, prompt(i, 120), most=30) for i, name in enumerate(names)))
    for index, result in enumerate(tight):
        roomy.run(OpenRequest(session=f"r{index}", seed=index))
        (alone,) = roomy.run(step(f"r{index}", prompt(index, 120), most=30))
        assert result.tokens == alone.tokens
    assert rig.cycle.stats()["pages_used"] <= 5


def test_a_step_that_can_never_fit_is_refused_with_the_numbers(make_rig: MakeRig) -> None:
    rig = make_rig(pages=2)
    _, error = rig.run(OpenRequest(session="s"), step("s", prompt(1, 129)))
    assert error.code == "cells_exhausted"
    assert "129 tokens need 3 pages" in str(error)
    assert "budget holds 2" in str(error)
    assert rig.log("s") == []


def test_sessions_that_begin_alike_compute_the_shared_prefix_once(rig: Rig) -> None:
    shared = prompt(5, 300)
    names = [f"s{i}" for i in range(8)]
    rig.run(*(OpenRequest(session=name, seed=2) for name in names))
    results = rig.run(*(step(name, [*shared, 10 + i], most=1) for i, name in enumerate(names)))
    assert rig.cycle.figures.tokens_run == 300 + 8
    assert results[0].usage.cached == 0
    assert all(result.usage.cached == 300 for result in results[1:])


def test_a_new_worker_rebuilds_lazily_and_shares_what_was_shared(make_rig: MakeRig, redis: Redis) -> None:
    first = make_rig()
    tree(first)
    expected = follow(make_rig(worker="X"), redis)
    second = make_rig(worker="W", incarnation="2")
    second.cycle.restore()
    assert second.engine.stats.tokens == 0
    assert follow(second, redis) == expected


def test_a_new_worker_rebuilds_eagerly_each_shared_prefix_once(make_rig: MakeRig) -> None:
    first = make_rig()
    logs = tree(first)
    first.cycle.surrender()
    second = make_rig(worker="W", incarnation="2", restore="eager")
    second.cycle.restore()
    assert second.engine.stats.tokens == distinct_prefix_tokens([log[:-1] for log in logs.values()])
    assert second.engine.stats.sequences == len(logs)
    before = second.engine.stats.tokens
    results = second.run(*(step(name, most=1) for name in logs))
    assert all(result.reason == "length" for result in results)
    assert second.engine.stats.tokens - before == len(logs), "each went on from its rebuilt cells"


def tree(rig: Rig) -> dict[str, list[int]]:
    """20 sessions: a root, children cloned off it, grandchildren cloned off them."""
    rig.run(OpenRequest(session="root", seed=1), step("root", prompt(1, 150)))
    children = [f"c{i}" for i in range(4)]
    rig.run(CloneRequest(session="root", targets=children))
    rig.run(*(step(name, prompt(10 + i, 40)) for i, name in enumerate(children)))
    for child in children[:3]:
        rig.run(CloneRequest(session=child, targets=[f"{child}-{i}" for i in range(5)]))
        rig.run(*(step(f"{child}-{i}", prompt(50 + i, 5)) for i in range(5)))
    names = ["root", *children, *(f"{child}-{i}" for child in children[:3] for i in range(5))]
    assert len(names) == 20
    return {name: rig.log(name) for name in names}


def follow(rig: Rig, redis: Redis) -> dict[str, list[int]]:
    """What every session of the tree says next, leaving Redis as it was."""
    keys = redis.keys("*")
    saved = {key: redis.dump(key) for key in keys}
    names = sorted(key.decode().split("{")[1].split("}")[0] for key in keys if key.endswith(b":log"))
    answers = dict(zip(names, rig.run(*(step(name) for name in names)), strict=True))
    redis.flushall()
    for key, value in saved.items():
        redis.restore(key, 0, value)
    return {name: answer.tokens for name, answer in answers.items()}


def distinct_prefix_tokens(logs: list[list[int]]) -> int:
    """Nodes of the trie of all logs: the least that can be run to rebuild them."""
    return len({tuple(log[: i + 1]) for log in logs for i in range(len(log))})


def test_the_persisted_table_lists_what_is_resident(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", prompt(1, 20)), OpenRequest(session="t"), step("t", prompt(2, 5)))
    rows = rig.cycle.store.persisted_sequences("W")
    sessions = rig.cycle.table.sessions
    assert rows == {name: (sessions[name].sequence, rig.cycle.residency.cached(sessions[name])) for name in ("s", "t")}
    rig.run(RewindRequest(session="s", to=4))
    assert rig.cycle.store.persisted_sequences("W")["s"][1] == 4


def test_a_long_prompt_does_not_stall_running_streams(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch_tokens=64, prefill_chunk=32)
    rig.run(OpenRequest(session="stream", seed=1), OpenRequest(session="long", seed=1))
    rig.take(step("stream", [1], most=60))
    rig.cycle.turn()
    rig.take(step("long", prompt(3, 2000), most=1))
    for _ in range(20):
        before = len(rig.log("stream"))
        rig.cycle.turn()
        assert len(rig.log("stream")) == before + 1, "one token every cycle, whatever the prompt"


def test_many_sessions_are_served_over_one_sequence(make_rig: MakeRig, fake: Callable[..., Engine]) -> None:
    single, roomy = make_rig(SingleSequence(fake())), make_rig(worker="V")
    answers: dict[str, list[Any]] = {}
    for rig, prefix in ((single, "s"), (roomy, "r")):
        rig.run(*(OpenRequest(session=f"{prefix}{i}", seed=i) for i in range(4)))
        first = rig.run(*(step(f"{prefix}{i}", prompt(i, 30)) for i in range(4)))
        rig.run(CloneRequest(session=f"{prefix}0", targets=[f"{prefix}-clone"], seeds=[5]))
        second = rig.run(*(step(f"{prefix}{i}", [9]) for i in range(4)), step(f"{prefix}-clone", [9]))
        answers[prefix] = [result.tokens for result in (*first, *second)]
    assert answers["s"] == answers["r"]
    assert single.engine.stats.sequences <= 1
