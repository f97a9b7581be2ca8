"""Nobody's work stands in the way of everybody else's: limits a tenant, a session and a worker have."""

from __future__ import annotations

from collections.abc import Callable

from rig import Rig

from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import OpenRequest, StepRequest
from tokenloom.worker.fairness import in_turn

MakeRig = Callable[..., Rig]


def step(session: str, tenant: str | None, tokens: list[int], most: int = 4) -> StepRequest:
    generation = Generation(max_tokens=most, temperature=0.0, ignore_eos=True)
    return StepRequest(session=session, tenant=tenant, tokens=tokens, generation=generation)


def test_each_tenants_first_comes_before_any_tenants_second() -> None:
    items = ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert in_turn(items, lambda item: item[0]) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_tenant_with_running_work_comes_later() -> None:
    assert in_turn(["a1", "b1", "b2", "b3"], lambda item: item[0], {"a": 2}) == ["b1", "b2", "a1", "b3"]


def test_a_flood_of_one_tenant_does_not_keep_another_from_running(make_rig: MakeRig) -> None:
    rig = make_rig(max_active=4)
    rig.run(*(OpenRequest(session=f"a{i}") for i in range(20)), OpenRequest(session="b"))
    rig.take(*(step(f"a{i}", "a", [i + 1], most=10) for i in range(20)))
    rig.cycle.turn()
    (late,) = rig.take(step("b", "b", [1], most=1))
    rig.turn()
    assert rig.outcomes.order[21:].index(late) <= 4


def test_a_tenant_runs_no_more_steps_than_allowed(make_rig: MakeRig) -> None:
    rig = make_rig(max_active_per_tenant=2)
    rig.run(*(OpenRequest(session=f"a{i}") for i in range(6)), OpenRequest(session="b"))
    rig.take(*(step(f"a{i}", "a", [i + 1]) for i in range(6)), step("b", None, [1]))
    rig.cycle.turn()
    assert rig.cycle.stats()["running"] == 3
    rig.turn()
    assert not rig.outcomes.errors


def test_prefill_chunks_are_dealt_tenant_by_tenant(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch_tokens=64, prefill_chunk=32)
    rig.run(*(OpenRequest(session=f"a{i}") for i in range(8)), OpenRequest(session="b"))
    rig.take(*(step(f"a{i}", "a", [i + 1] * 600, most=1) for i in range(8)))
    rig.cycle.turn()
    (late,) = rig.take(step("b", "b", [9] * 320, most=1))
    for _ in range(11):
        rig.cycle.turn()
    assert late in rig.outcomes.results, "half of every batch was b's"


def test_a_session_with_too_many_jobs_waiting_is_overloaded(make_rig: MakeRig) -> None:
    rig = make_rig(max_waiting_per_session=3)
    rig.run(OpenRequest(session="s"))
    ids = rig.take(*(step("s", None, [1]) for _ in range(6)))
    rig.turn()
    codes = [rig.outcomes.errors[job].code for job in ids if job in rig.outcomes.errors]
    assert codes == ["overloaded"] * 3
    assert len(rig.log("s")) == 3 * 5
    assert "3 (TOKENLOOM_MAX_WAITING_PER_SESSION)" in str(rig.outcomes.errors[ids[3]].body.limit)


def test_a_worker_takes_no_more_jobs_than_allowed(make_rig: MakeRig) -> None:
    rig = make_rig(max_claimed=5)
    rig.run(OpenRequest(session="s"))
    rig.take(*(step("s", None, [1]) for _ in range(3)))
    assert rig.cycle.room == 2
    rig.cycle.stop_accepting()
    assert rig.cycle.room == 0
