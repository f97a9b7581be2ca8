"""The session rules, job by job: open, step, clone, rewind, close, in order and with the right refusals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from rig import Rig, joined

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import (
    ChatMessage,
    CloneRequest,
    CloseRequest,
    OpenRequest,
    RewindRequest,
    StepRequest,
)
from tokenloom.worker.operations import derived_seed

GREEDY = Generation(max_tokens=8, temperature=0.0, ignore_eos=True)


def step(session: str, tokens: list[int] | None = None, **generation: object) -> StepRequest:
    return StepRequest(session=session, tokens=tokens, generation=GREEDY.model_copy(update=generation))


def test_a_step_appends_then_generates_and_events_sum_to_the_log(rig: Rig) -> None:
    opened, done = rig.run(OpenRequest(session="s", seed=7), step("s", [5, 6, 7]))
    assert (opened.seed, opened.created) == (7, True)
    assert (done.reason, done.length, len(done.tokens)) == ("length", 11, 8)
    assert rig.log("s") == [5, 6, 7, *done.tokens]
    events = rig.events("s")
    assert [event.type for event in events] == ["opened", "appended", *["tokens"] * 8, "finished"]
    assert joined(events) == rig.log("s")
    assert "".join(e.text for e in events if e.type in ("tokens", "finished")) == done.text
    assert done.usage.model_dump(include={"appended", "generated"}) == {"appended": 3, "generated": 8}


def test_a_step_without_input_continues_as_one_longer_step_would(rig: Rig) -> None:
    rig.run(OpenRequest(session="one", seed=1), OpenRequest(session="two", seed=1))
    whole = rig.run(step("one", [1, 2], max_tokens=8))[0]
    first, second = rig.run(step("two", [1, 2], max_tokens=3), step("two", max_tokens=5))
    assert first.tokens + second.tokens == whole.tokens


def test_max_tokens_zero_only_prefills(rig: Rig) -> None:
    _, done = rig.run(OpenRequest(session="s"), step("s", [1, 2, 3], max_tokens=0))
    assert (done.reason, done.tokens, done.length) == ("length", [], 3)
    assert rig.cycle.residency.cached(rig.cycle.table.sessions["s"]) == 3


def test_sessions_decoded_together_get_what_they_get_alone(
    rig: Rig, make_rig: Callable[..., Rig], redis: object
) -> None:
    names = [f"s{i}" for i in range(20)]
    prompts = {name: list(range(i + 1, 2 * i + 3)) for i, name in enumerate(names)}
    rig.run(*(OpenRequest(session=name, seed=3) for name in names))
    together = rig.run(*(step(name, prompts[name], temperature=1.0) for name in names))
    assert rig.cycle.stats()["sessions_per_forward"] > 10
    for name, result in zip(names, together, strict=True):
        alone = rig.run(
            OpenRequest(session=f"alone-{name}", seed=3), step(f"alone-{name}", prompts[name], temperature=1.0)
        )
        assert alone[1].tokens == result.tokens


def test_a_clone_shares_cells_and_continues_as_its_source(rig: Rig) -> None:
    rig.run(OpenRequest(session="s", seed=9), step("s", list(range(100))))
    run_before = rig.cycle.figures.tokens_run
    cloned = rig.run(CloneRequest(session="s", targets=["c", "d"], seeds=[9, 9]))[0]
    assert cloned.length == 108
    source, one, two = rig.run(step("s"), step("c"), step("d"))
    assert source.tokens == one.tokens == two.tokens
    assert rig.cycle.figures.tokens_run - run_before == 3 * 8, "each clone ran its new tokens only"


def test_clones_get_their_own_derived_seeds(rig: Rig) -> None:
    rig.run(OpenRequest(session="s", seed=9), step("s", [1]))
    cloned = rig.run(CloneRequest(session="s", targets=["a", "b"]))[0]
    assert cloned.seeds == [derived_seed(9, "a"), derived_seed(9, "b")]
    one, two = rig.run(step("a", temperature=1.0), step("b", temperature=1.0))
    assert one.tokens != two.tokens


def test_a_clone_of_committed_tokens_passes_the_running_step(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2, 3], max_tokens=4))
    running, early, late = rig.take(
        step("s", max_tokens=50),
        CloneRequest(session="s", targets=["early"], upto=5),
        CloneRequest(session="s", targets=["late"]),
    )
    rig.cycle.turn()
    rig.cycle.turn()
    assert early in rig.outcomes.results
    assert running not in rig.outcomes.results
    rig.turn()
    assert rig.outcomes.order[-3:] == [early, running, late]
    assert rig.log("early") == rig.log("s")[:5]
    assert rig.log("late") == rig.log("s")


def test_jobs_of_a_session_run_in_the_order_of_the_queue(rig: Rig) -> None:
    ids = rig.take(
        OpenRequest(session="s"),
        step("s", [1], max_tokens=3),
        RewindRequest(session="s", to=2),
        step("s", [9], max_tokens=2),
        CloneRequest(session="s", targets=["t"]),
        step("t", max_tokens=1),
        CloseRequest(session="s"),
    )
    rig.turn()
    assert not rig.outcomes.errors
    assert [job for job in rig.outcomes.order if job != ids[5]] == [job for job in ids if job != ids[5]]
    assert rig.outcomes.results[ids[5]].length == 6


def test_rewind_cuts_the_log_and_the_session_goes_on_from_there(rig: Rig) -> None:
    _, first = rig.run(OpenRequest(session="s"), step("s", [1, 2, 3]))
    rewound, second = rig.run(RewindRequest(session="s", to=3), step("s"))
    assert rewound.length == 3
    assert second.tokens == first.tokens
    assert joined(rig.events("s")) == rig.log("s")


def test_rewind_to_nothing_and_a_new_prompt(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2, 3]))
    _, done = rig.run(RewindRequest(session="s", to=0), step("s", [4]))
    assert rig.log("s") == [4, *done.tokens]


def test_a_step_that_only_prefilled_lets_the_next_one_begin_at_once(rig: Rig) -> None:
    _, first, second = rig.run(OpenRequest(session="s"), step("s", [1], max_tokens=0), step("s", max_tokens=1))
    assert (first.length, second.length) == (1, 2)


def test_close_frees_cells_and_lets_keys_expire(rig: Rig) -> None:
    closed, again = rig.run(
        OpenRequest(session="s"), step("s", [1]), CloseRequest(session="s"), CloseRequest(session="s")
    )[2:]
    assert (closed.closed, again.closed) == (True, False)
    assert rig.engine.stats.pages_used == 0
    for key in (rig.keys.session("s"), rig.keys.log("s"), rig.keys.events("s")):
        assert 0 < rig.redis.ttl(key) <= rig.settings.closed_ttl
    assert rig.redis.zscore(rig.keys.sessions, "s") is None


def test_a_closed_session_opens_anew_and_empty(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1]), CloseRequest(session="s"))
    opened, done = rig.run(OpenRequest(session="s"), step("s", [2], max_tokens=1))
    assert (opened.created, done.length) == (True, 2)
    assert rig.redis.ttl(rig.keys.log("s")) == -1


def test_a_stop_token_stays_in_the_log_and_out_of_the_text(rig: Rig) -> None:
    _, plain = rig.run(OpenRequest(session="s", seed=1), step("s", [1, 2]))
    stop = plain.tokens[3]
    first = plain.tokens.index(stop)
    _, done = rig.run(OpenRequest(session="t", seed=1), step("t", [1, 2], stop_tokens=[stop]))
    assert (done.reason, done.tokens) == ("stop", plain.tokens[: first + 1])
    assert rig.log("t") == [1, 2, *done.tokens]


def test_a_stop_string_ends_the_step_and_is_not_emitted(rig: Rig) -> None:
    _, plain = rig.run(OpenRequest(session="s", seed=1), step("s", [1, 2], max_tokens=40))
    assert len(plain.text) > 10
    stop = plain.text[6:8]
    _, done = rig.run(OpenRequest(session="t", seed=1), step("t", [1, 2], max_tokens=40, stop=[stop]))
    assert done.reason == "stop"
    assert done.text == plain.text[: plain.text.index(stop)]
    streamed = "".join(e.text for e in rig.events("t") if e.type in ("tokens", "finished"))
    assert streamed == done.text


def test_the_context_ends_a_step_as_length(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pages=2)
    capacity = 2 * rig.engine.geometry.page_size
    _, done = rig.run(OpenRequest(session="s"), step("s", list(range(1, capacity - 2)), max_tokens=100))
    assert (done.reason, done.length) == ("length", capacity)


def test_logprobs_come_with_tokens_and_result(rig: Rig) -> None:
    _, done = rig.run(OpenRequest(session="s"), step("s", [1], logprobs=2))
    assert len(done.logprobs) == 8
    assert all(len(item.top) == 2 and item.chosen <= 0 for item in done.logprobs)


def test_session_defaults_hold_unless_the_step_says_otherwise(rig: Rig) -> None:
    rig.run(OpenRequest(session="s", defaults=Generation(max_tokens=3, temperature=0.0, ignore_eos=True)))
    default, given = rig.run(
        StepRequest(session="s", tokens=[1]), StepRequest(session="s", generation=Generation(max_tokens=5))
    )
    assert (len(default.tokens), len(given.tokens)) == (3, 5)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (step("nobody", [1]), "no_such_session", "'nobody' does not exist: open it first"),
        (RewindRequest(session="nobody", to=0), "no_such_session", "'nobody' does not exist"),
        (CloneRequest(session="nobody", targets=["t"]), "no_such_session", "'nobody' does not exist"),
        (OpenRequest(session="s"), "session_exists", "pass exist_ok=True"),
        (RewindRequest(session="s", to=4), "invalid", "to: 4 is beyond the 3 tokens"),
        (CloneRequest(session="s", targets=["t"], upto=4), "invalid", "upto: 4 is beyond the 3 tokens"),
        (CloneRequest(session="s", targets=["other"]), "session_exists", "'other' is open already"),
        (step("s", [10**6]), "invalid", "tokens: token 1000000 is outside the model's vocabulary"),
        (step("s", [1], stop_tokens=[10**6]), "invalid", "generation.stop_tokens: token 1000000 is outside"),
        (step("s", [1], logit_bias={10**6: 1.0}), "invalid", "generation.logit_bias: token 1000000 is outside"),
        (StepRequest(session="s", tokens=[1], at_length=2), "length_mismatch", "has 3 tokens, not 2"),
        (step("s", [1] * 5000), "context_full", "3 tokens in session 's' and 5000 appended are 5003"),
        (step("other"), "invalid", "nothing to generate from"),
    ],
)
def test_a_refused_job_says_why_on_the_channel_and_changes_nothing(
    rig: Rig, request_: Any, code: str, words: str
) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2, 3], max_tokens=0), OpenRequest(session="other"))
    before = rig.log("s")
    (error,) = rig.run(request_)
    assert isinstance(error, TokenloomError)
    assert (error.code, words in str(error)) == (code, True), str(error)
    last = rig.events(request_.session)[-1]
    assert last.error == error.body
    assert rig.log("s") == before
    fine = rig.run(step("s", [1]))[0]
    assert fine.reason == "length"


def test_a_clone_into_what_another_worker_has_says_so(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"), step("s", [1, 2, 3], max_tokens=0))
    clone = rig.claim(CloneRequest(session="s", targets=["mine", "theirs"]))
    clone.epochs["theirs"] = -1  # as the claim says it, be that session open or about to be closed
    (error,) = rig.run(clone)
    assert error.code == "session_exists"
    assert "'theirs' is another worker's" in str(error)
    assert not rig.redis.hexists(rig.keys.session("mine"), "state")
    assert rig.run(CloneRequest(session="s", targets=["mine"]))[0].length == 3


def test_chat_messages_go_through_the_models_template(rig: Rig) -> None:
    message = ChatMessage(role="user", content="hello")
    _, done = rig.run(
        OpenRequest(session="s"), StepRequest(session="s", messages=[message], generation=Generation(max_tokens=1))
    )
    assert done.usage.appended > len("hello")


def test_a_cancelled_step_ends_with_what_it_has(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    (job,) = rig.take(step("s", [1], max_tokens=500))
    for _ in range(4):
        rig.cycle.turn()
    rig.redis.hset(rig.keys.cancels("s"), job, "1")
    rig.turn()
    done = rig.outcome(job)
    assert done.reason == "cancelled"
    assert 1 <= len(done.tokens) < 20
    assert rig.events("s")[-1].reason == "cancelled"
    assert not rig.redis.exists(rig.keys.cancels("s"))
    assert joined(rig.events("s")) == rig.log("s")


def test_a_step_cancelled_in_the_queue_runs_nothing(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    rig.redis.hset(rig.keys.cancels("s"), "job-x", "1")
    claimed = rig.claim(step("s", [1]), "job-x")
    (done,) = rig.run(claimed)
    assert (done.reason, done.tokens, rig.log("s")) == ("cancelled", [], [])


def test_a_deadline_in_the_past_runs_nothing(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    (done,) = rig.run(StepRequest(session="s", tokens=[1], deadline=time.time() - 1))
    assert (done.reason, rig.log("s"), rig.engine.stats.forwards) == ("timeout", [], 0)


def test_a_deadline_ends_a_running_step(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    generation = Generation(max_tokens=100_000, ignore_eos=True)
    (done,) = rig.run(StepRequest(session="s", tokens=[1], deadline=time.time() + 0.15, generation=generation))
    assert done.reason == "timeout"
    assert len(done.tokens) > 0


@pytest.mark.parametrize(
    ("why", "reason"), [("cancelled", "cancelled"), ("stopped", "cancelled"), ("timeout", "timeout")]
)
def test_an_interrupted_step_ends_and_rq_hears_why(rig: Rig, why: str, reason: str) -> None:
    rig.run(OpenRequest(session="s"))
    (job,) = rig.take(step("s", [1], max_tokens=500))
    rig.cycle.turn()
    rig.cycle.turn()
    rig.cycle.interrupt(job, why)  # type: ignore[arg-type]
    rig.turn()
    assert rig.outcomes.interruptions[job] == why
    assert rig.events("s")[-1].reason == reason
    assert joined(rig.events("s")) == rig.log("s")


@pytest.mark.parametrize("why", ["cancelled", "stopped", "timeout"])
def test_an_interrupted_job_ends_though_it_waits_behind_another(rig: Rig, why: str) -> None:
    rig.run(OpenRequest(session="s"))
    _, behind, rewind = rig.take(step("s", [1], max_tokens=50), step("s", [2]), RewindRequest(session="s", to=0))
    rig.cycle.turn()
    rig.cycle.interrupt(behind, why)  # type: ignore[arg-type]
    rig.cycle.interrupt(rewind, why)  # type: ignore[arg-type]
    rig.cycle.turn()
    assert rig.outcomes.interruptions == {behind: why, rewind: why}
    rig.turn()
    assert len(rig.log("s")) == 51


def test_an_unused_session_expires_when_told_so(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(idle_ttl=1)
    rig.run(OpenRequest(session="s"), step("s", [1]))
    assert 0 < rig.redis.ttl(rig.keys.session("s")) <= 1
    deadline = time.monotonic() + 5
    while rig.cycle.table.sessions and time.monotonic() < deadline:
        time.sleep(0.1)
        rig.cycle.turn()
    assert rig.engine.stats.pages_used == 0
    assert rig.redis.zscore(rig.keys.sessions, "s") is None
    time.sleep(1.0)
    assert not rig.redis.keys("tokenloom:{s}:*")
    (error,) = rig.run(step("s", [1]))
    assert error.code == "no_such_session"


def test_a_session_without_cells_and_work_is_released_unless_a_job_may_be_on_its_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.worker.session_table.IDLE_OWNED", -1.0)
    rig.run(OpenRequest(session="s"))
    rig.redis.rpush(rig.keys.worker_inbox("W"), "some-job")
    rig.cycle.table.release_idle()
    assert rig.redis.hget(rig.keys.session("s"), "owner") == b"W#1"
    rig.redis.delete(rig.keys.worker_inbox("W"))
    rig.cycle.table.release_idle()
    assert rig.redis.hget(rig.keys.session("s"), "owner") is None
    assert not rig.cycle.table.sessions
    assert rig.run(step("s", [1]))[0].reason == "length"


def test_rqs_job_timeout_counts_from_the_start_of_the_step(rig: Rig) -> None:
    rig.run(OpenRequest(session="s"))
    first = rig.claim(step("s", [1]), timeout=50.0, expires=time.monotonic() + 50)
    second = rig.claim(step("s", [1]), timeout=50.0, expires=time.monotonic() + 50)
    rig.take(first, second)
    rig.cycle.turn()
    assert first.expires is not None
    assert second.expires is None, "it waits behind the first"
