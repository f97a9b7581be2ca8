"""After a crash, a lost lease or a failed forward: nothing lost, nothing doubled, nobody else disturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from rig import Rig, joined

from tokenloom.native_ext.engine import Engine, EngineError
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest
from tokenloom.worker.jobs.scripts import suspect_key

MakeRig = Callable[..., Rig]


def step(session: str, tokens: list[int] | None = None, **generation: Any) -> StepRequest:
    settings: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True} | generation
    return StepRequest(session=session, tokens=tokens, generation=Generation(**settings))


class Breaking:
    """An engine whose forward raises while a batch holds one of the given tokens."""

    def __init__(self, engine: Engine, *tokens: int) -> None:
        self._engine = engine
        self.tokens = set(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, batch: Any) -> Any:
        if any(token in self.tokens for entry in batch for token in entry.tokens):
            raise EngineError("this token breaks the engine")
        return self._engine.forward(batch)


# -- crashes: a new worker takes the same jobs ----------------------------------------------------------------------


def undisturbed(make_rig: MakeRig, redis: Redis, requests: list[Any]) -> tuple[list[Any], dict[str, list[int]]]:
    rig = make_rig()
    ids = rig.take(*(rig.claim(request, f"j{i}") for i, request in enumerate(requests)))
    rig.turn()
    sessions = {name for request in requests for name in request.sessions}
    answer = [rig.outcome(job) for job in ids], {name: rig.log(name) for name in sessions}
    redis.flushall()
    return answer


SCRIPT: list[Any] = [
    OpenRequest(session="s", seed=1),
    step("s", [1, 2, 3]),
    RewindRequest(session="s", to=6),
    CloneRequest(session="s", targets=["t", "u"]),
    step("t", [7], stop=["q"], logprobs=1),
    step("u", max_tokens=5),
    step("s", [4], max_tokens=6),
    CloseRequest(session="u"),
]


@pytest.mark.parametrize("crash_after", range(24))
def test_a_crash_after_any_cycle_loses_and_doubles_nothing(make_rig: MakeRig, redis: Redis, crash_after: int) -> None:
    expected, logs = undisturbed(make_rig, redis, SCRIPT)
    first = make_rig()
    first.take(*(first.claim(request, f"j{i}") for i, request in enumerate(SCRIPT)))
    for _ in range(crash_after):
        first.cycle.turn()
    # nothing of what it finished reached RQ: every job is delivered again, in order, to another worker
    second = make_rig(worker="V")
    ids = second.take(*(second.claim(request, f"j{i}", deaths=1) for i, request in enumerate(SCRIPT)))
    second.turn()
    for job, want in zip(ids, expected, strict=True):
        got = second.outcome(job)
        assert without_cached(got) == without_cached(want)
    for name, log in logs.items():
        assert second.log(name) == log
    for name in ("s", "t", "u"):
        events = second.events(name)
        finals = [event.job for event in events if event.type == "finished"]
        assert len(finals) == len(set(finals))
        assert joined(events, inherited=second.log(name)) == second.log(name)


def without_cached(result: Any) -> Any:
    fields = result.model_dump()
    fields.get("usage", {}).pop("cached", None)
    return fields


def test_a_step_taken_up_again_gives_the_same_tokens_text_and_logprobs(make_rig: MakeRig, redis: Redis) -> None:
    requests = [OpenRequest(session="s", seed=5), step("s", [1, 2], max_tokens=20, logprobs=1)]
    expected, _ = undisturbed(make_rig, redis, requests)
    first = make_rig()
    first.run(first.claim(requests[0], "j0"))
    first.take(first.claim(requests[1], "j1"))
    for _ in range(9):
        first.cycle.turn()
    committed = len(first.log("s")) - 2
    assert committed == 8, "the ninth token is in the air"
    second = make_rig(worker="V")
    (done,) = second.run(second.claim(requests[1], "j1", deaths=1))
    assert without_cached(done) == without_cached(expected[1])
    assert second.cycle.figures.resumed == 1
    assert second.cycle.figures.tokens_generated == 20 - committed


def test_a_finished_step_enqueued_again_returns_its_result_and_runs_nothing(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    (done,) = rig.run(rig.claim(step("s", [1]), "same"))
    events = len(rig.events("s"))
    rig.outcomes.results.clear()
    (again,) = rig.run(rig.claim(step("s", [1]), "same"))
    assert again == done
    assert len(rig.events("s")) == events
    assert len(rig.log("s")) == 9


def test_a_step_delivered_again_while_it_runs_goes_on_under_the_newer_claim(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    old = rig.claim(step("s", [1]), "same")
    rig.take(old)
    rig.cycle.turn()
    new = rig.claim(step("s", [1]), "same")
    rig.take(new)
    rig.turn()
    assert rig.outcomes.dropped == ["same"]
    assert rig.outcomes.order.count("same") == 1
    assert rig.outcomes.finished_claims[-1] is new
    assert len(rig.log("s")) == 9


def test_a_session_remembers_so_many_finished_jobs(make_rig: MakeRig) -> None:
    rig = make_rig(remember=3)
    rig.run(OpenRequest(session="s"))
    for index in range(5):
        rig.run(rig.claim(step("s", [1], max_tokens=1), f"step-{index}"))
    assert sorted(rig.redis.hkeys(rig.keys.steps("s"))) == [b"step-2", b"step-3", b"step-4"]


# -- a lost lease ---------------------------------------------------------------------------------------------------


def test_a_fenced_worker_publishes_nothing_and_drops_the_session(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="s", seed=1), OpenRequest(session="other"))
    first.take(first.claim(step("s", [1, 2], max_tokens=12), "j"))
    (kept,) = first.take(step("other", [1], max_tokens=12))
    for _ in range(4):
        first.cycle.turn()
    second = make_rig(worker="V")
    second.take(second.claim(step("s", [1, 2], max_tokens=12), "j", deaths=1))
    first.turn()
    assert first.outcomes.dropped == ["j"]
    assert first.cycle.figures.fenced == 1
    assert first.outcome(kept).reason == "length", "the others go on"
    assert first.engine.stats.sequences == 1
    second.turn()
    assert len(second.outcome("j").tokens) == 12
    assert joined(second.events("s")) == second.log("s")


def test_a_session_that_comes_back_changed_is_read_again(make_rig: MakeRig) -> None:
    first, second = make_rig(), make_rig(worker="V")
    first.run(OpenRequest(session="s", seed=1), step("s", list(range(40))))
    second.run(step("s", [7]))
    (done,) = first.run(step("s", max_tokens=4))
    assert done.length == 48 + 9 + 4
    assert joined(first.events("s")) == first.log("s")


def test_forgetting_everything_leaves_redis_alone(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="s", seed=1))
    first.take(first.claim(step("s", [1, 2]), "j"))
    first.cycle.turn()
    before = {key: first.redis.dump(key) for key in first.redis.keys("tokenloom:{*")}
    first.cycle.forget(None)
    assert first.outcomes.dropped == ["j"]
    assert first.engine.stats.sequences == 0
    assert {key: first.redis.dump(key) for key in first.redis.keys("tokenloom:{*")} == before


def test_redis_falling_back_makes_the_worker_fall_back_too(rig: Rig) -> None:
    rig.run(OpenRequest(session="s", seed=1))
    rig.take(rig.claim(step("s", [1, 2], max_tokens=12), "j"))
    for _ in range(3):
        rig.cycle.turn()
    keys = [rig.keys.session("s"), rig.keys.log("s"), rig.keys.steps("s")]
    saved = [rig.redis.dump(key) for key in keys]
    for _ in range(4):
        rig.cycle.turn()
    for key, value in zip(keys, saved, strict=True):
        rig.redis.restore(key, 0, value, replace=True)
    rig.turn()
    assert rig.cycle.figures.reread == 1
    assert rig.outcome("j").length == 14 == len(rig.log("s"))


# -- a forward that fails -------------------------------------------------------------------------------------------


def test_a_failing_forward_fails_its_culprit_alone(make_rig: MakeRig, fake: Callable[..., Engine]) -> None:
    rig = make_rig(Breaking(fake(), 66))
    rig.run(*(OpenRequest(session=f"s{i}", seed=i) for i in range(7)))
    results = rig.run(*(step(f"s{i}", [66 if i == 3 else i + 1]) for i in range(7)))
    errors = [r for r in results if isinstance(r, TokenloomError)]
    assert [error.code for error in errors] == ["engine"]
    assert isinstance(results[3], TokenloomError)
    calm = make_rig(worker="V")
    for index in (0, 1, 2, 4, 5, 6):
        calm.run(OpenRequest(session=f"calm{index}", seed=index))
        (alone,) = calm.run(step(f"calm{index}", [index + 1]))
        assert results[index].tokens == alone.tokens
    assert rig.events("s3")[-1].error.code == "engine"


@pytest.fixture
def failed(make_rig: MakeRig, fake: Callable[..., Engine]) -> Rig:
    """Job j, a step of session s that appends 1 and 66, has failed in the engine; it would not again."""
    engine = Breaking(fake(), 66)
    rig = make_rig(engine)
    rig.run(OpenRequest(session="s", seed=1))
    (error,) = rig.run(rig.claim(step("s", [1, 66]), "j"))
    assert error.code == "engine"
    engine.tokens.clear()
    rig.outcomes.errors.clear()
    return rig


def test_a_failed_step_tried_again_goes_on_from_its_progress(failed: Rig) -> None:
    rig = failed
    (done,) = rig.run(rig.claim(step("s", [1, 66]), "j"))
    assert rig.log("s") == [1, 66, *done.tokens]
    assert joined(rig.events("s")) == rig.log("s")


def test_an_error_is_remembered_when_the_worker_died_before_rq_heard(rig: Rig) -> None:
    (error,) = rig.run(rig.claim(step("nobody", [1]), "j"))
    events = len(rig.events("nobody"))
    (again,) = rig.run(rig.claim(step("nobody", [1]), "j", deaths=1))
    assert again.body == error.body
    assert len(rig.events("nobody")) == events


def test_a_step_that_killed_its_worker_too_often_is_poison(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    (error,) = rig.run(rig.claim(step("s", [1]), deaths=3, alone=3))
    assert (error.code, error.body.value) == ("poison", "3")
    assert rig.log("s") == []


def test_deaths_count_from_the_last_progress(make_rig: MakeRig) -> None:
    first = make_rig()
    first.run(OpenRequest(session="s", seed=1))
    first.take(first.claim(step("s", [1], max_tokens=9), "j", deaths=2))
    first.cycle.turn()
    first.cycle.turn()
    second = make_rig(worker="V")
    (done,) = second.run(second.claim(step("s", [1], max_tokens=9), "j", deaths=3))
    assert len(done.tokens) == 9


def test_a_suspect_runs_alone_and_marked(make_rig: MakeRig, fake: Callable[..., Engine]) -> None:
    batches: list[tuple[int, bytes | None]] = []

    class Watching(Breaking):
        def forward(self, batch: Any) -> Any:
            batches.append((len(batch), rig.redis.get(suspect_key(rig.keys, "W"))))
            return super().forward(batch)

    first = make_rig(worker="V")
    first.run(*(OpenRequest(session=f"s{i}") for i in range(4)))
    first.take(first.claim(step("s3", [1], max_tokens=3), "suspect"))
    first.cycle.admit()
    rig = make_rig(Watching(fake()))
    rig.take(*(step(f"s{i}", [1], max_tokens=6) for i in range(3)))
    rig.take(rig.claim(step("s3", [1], max_tokens=3), "suspect", deaths=2))
    rig.turn()
    assert rig.outcome("suspect").reason == "length"
    assert (1, b"suspect") in batches
    assert all(size == 1 for size, mark in batches if mark)
    assert (3, None) in batches


def test_a_failed_step_is_not_taken_up_on_a_log_that_only_has_the_right_length(failed: Rig) -> None:
    rig = failed
    rig.run(RewindRequest(session="s", to=0), step("s", [5, 6], max_tokens=0))
    (done,) = rig.run(rig.claim(step("s", [1, 66]), "j"))
    assert rig.log("s") == [5, 6, 1, 66, *done.tokens]


def test_jobs_from_before_a_session_was_opened_anew_are_remembered(make_rig: MakeRig) -> None:
    requests = [OpenRequest(session="s", seed=1), CloseRequest(session="s"), OpenRequest(session="s", seed=2)]
    first = make_rig()
    first.run(*(first.claim(request, f"j{i}") for i, request in enumerate(requests)))
    second = make_rig(worker="V")
    results = second.run(*(second.claim(request, f"j{i}", deaths=1) for i, request in enumerate(requests)))
    assert [result.model_dump().get("seed") for result in results] == [1, None, 2]
    assert second.redis.hget(second.keys.session("s"), "state") == b"open"
