"""While a forward is in the air, the rest of the cycle goes on; and nobody can tell from what they see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from rig import Rig, joined

from tokenloom.native_ext.engine import Engine, EngineError, EngineSettings, Entry
from tokenloom.native_ext.fake import PAGE_BYTES, FakeEngine, FakeSettings
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest
from tokenloom.worker.jobs.scripts import suspect_key
from tokenloom.worker.pipelined import PipelinedEngine

MakeRig = Callable[..., Rig]


def step(session: str, tokens: list[int] | None = None, **generation: Any) -> StepRequest:
    settings: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True} | generation
    return StepRequest(session=session, tokens=tokens, generation=Generation(**settings))


class Held:
    """An engine whose forwards, from the number given to ``hold`` on, wait to be let go; number ``breaks`` raises.

    Any other call during a forward is against the contract, and fails the test that made it.
    """

    def __init__(self, engine: Engine) -> None:
        self.batches: list[int] = []
        self.breaks = 0
        self._engine = engine
        self._running = False
        self._held_from: int | None = None
        self._go = threading.Event()

    @property
    def begun(self) -> int:
        return len(self.batches)

    def hold(self, number: int) -> None:
        """Forwards are numbered from 1."""
        self._held_from = number

    def let_go(self) -> None:
        self._held_from = None
        self._go.set()

    def __getattr__(self, name: str) -> Any:
        assert not self._running or name in ("geometry", "metadata"), f"{name} during a forward"
        return getattr(self._engine, name)

    def forward(self, batch: Any) -> Any:
        self.batches.append(len(batch))
        self._running = True
        try:
            if self._held_from is not None and self.begun >= self._held_from:
                assert self._go.wait(20)
                self._go.clear()
            if self.begun == self.breaks:
                raise EngineError("told to break")
            return self._engine.forward(batch)
        finally:
            self._running = False


@pytest.fixture
def held(fake: Callable[..., Engine]) -> Iterator[Held]:
    """A fake engine that holds its forwards on request."""
    engine = Held(fake())
    yield engine
    engine.let_go()


def fly(rig: Rig, held: Held) -> Rig:
    """The rig with a step of session s in the air: two of its tokens are committed, the third is being computed."""
    rig.run(OpenRequest(session="s", seed=3), OpenRequest(session="t", seed=4))
    rig.take(rig.claim(step("s", [1, 2, 3], max_tokens=6), "j"))
    held.hold(3)
    for _ in range(3):
        rig.cycle.turn()
    assert rig.cycle.in_the_air
    return rig


@pytest.fixture
def flying(make_rig: MakeRig, held: Held) -> Rig:
    """See ``fly``."""
    return fly(make_rig(held), held)


@pytest.fixture
def calm(make_rig: MakeRig, redis: Redis) -> Callable[..., list[Any]]:
    """What an undisturbed worker of its own gives for requests; their sessions are gone afterwards."""

    def run(*requests: Any) -> list[Any]:
        rig = make_rig(worker="calm")
        results: list[Any] = rig.run(*requests)
        redis.flushall()
        return results

    return run


SAME = [OpenRequest(session="s", seed=3), step("s", [1, 2, 3], max_tokens=6)]


def test_tokens_are_committed_while_the_next_forward_runs(flying: Rig, held: Held) -> None:
    assert held.begun == 3
    assert len(flying.log("s")) == 3 + 2
    assert flying.events("s")[-1].position == 3 + 1
    held.let_go()
    flying.turn()
    assert joined(flying.events("s")) == flying.log("s")


def test_no_forward_begins_before_all_of_the_last_but_one_is_committed(flying: Rig, held: Held) -> None:
    held.let_go()
    plain = flying.cycle.store.write
    ahead: list[int] = []

    def watching(writes: Any, **options: Any) -> Any:
        flying.cycle.engine.settle()
        ahead.append(held.begun - (len(flying.log("s")) - 3))
        return plain(writes, **options)

    flying.cycle.store.write = watching  # type: ignore[method-assign]
    flying.turn()
    assert flying.outcome("j").reason == "length"
    assert max(ahead) == 2, "one that is being committed, and one that was in the air meanwhile"


def test_what_is_begun_while_a_forward_runs_is_in_the_next_one(flying: Rig, held: Held) -> None:
    flying.take(step("t", [1]))
    assert flying.cycle.admit()
    assert len(flying.log("t")) == 1
    assert flying.cycle.in_the_air
    held.let_go()
    flying.turn()
    assert held.batches[3] == 2
    assert joined(flying.events("t")) == flying.log("t")


@pytest.mark.parametrize("how", ["cancelled", "stopped", "timeout", "by the producer"])
def test_a_step_that_ends_while_its_forward_runs_keeps_what_was_committed_and_no_more(
    calm: Callable[..., list[Any]], make_rig: MakeRig, held: Held, how: str
) -> None:
    expected = calm(SAME[0], step("s", [1, 2, 3], max_tokens=2), step("s", [9], max_tokens=4))
    rig = make_rig(held)
    rig.run(SAME[0])
    rig.take(rig.claim(SAME[1], "j"))
    rig.cycle.turn()
    rig.cycle.turn()
    held.hold(3)
    if how == "by the producer":
        rig.redis.hset(rig.keys.cancels("s"), "j", "1")
        rig.cycle.turn()  # the answer to this commit says so, and its forward is in the air
    else:
        rig.cycle.turn()
        rig.cycle.interrupt("j", how)  # type: ignore[arg-type]
        rig.cycle.admit()
    assert rig.events("s")[-1].type == "finished", "it does not wait for the forward"
    held.let_go()
    rig.turn()
    assert rig.events("s")[-1].reason == ("timeout" if how == "timeout" else "cancelled")
    assert len(rig.log("s")) == 3 + 2
    (after,) = rig.run(step("s", [9], max_tokens=4))
    assert after.tokens == expected[2].tokens
    assert joined(rig.events("s")) == rig.log("s")


@pytest.mark.parametrize("what", ["rewind", "close", "clone", "step"])
def test_the_next_job_may_come_while_the_last_forward_of_a_step_that_ended_runs(
    flying: Rig, held: Held, make_rig: MakeRig, what: str
) -> None:
    jobs: dict[str, Any] = {
        "rewind": RewindRequest(session="s", to=4),
        "close": CloseRequest(session="s"),
        "clone": CloneRequest(session="s", targets=["u"]),
        "step": step("s", [7], max_tokens=3),
    }
    flying.cycle.interrupt("j", "stopped")
    (job,) = flying.take(jobs[what])
    threading.Timer(0.05, held.let_go).start()  # whoever needs the engine waits for it
    flying.cycle.admit()
    flying.turn()
    assert not isinstance(flying.outcome(job), TokenloomError)
    if what == "close":
        assert held.stats.sequences == 0
        return
    (after,) = flying.run(step("s", [8], max_tokens=4))
    log = flying.log("s")
    assert joined(flying.events("s")) == log
    other = make_rig(worker="V")
    other.run(OpenRequest(session="v", seed=3))
    (again,) = other.run(step("v", log[:-4], max_tokens=4))
    assert again.tokens == after.tokens, "the cells were those of the log"


def test_a_session_lost_while_its_forward_runs_is_dropped_in_silence(
    flying: Rig, held: Held, make_rig: MakeRig
) -> None:
    second = make_rig(worker="V")
    second.take(second.claim(step("s", [1, 2, 3], max_tokens=6), "j", deaths=1))
    before = len(flying.events("s"))
    held.let_go()
    flying.turn()
    assert flying.outcomes.dropped == ["j"]
    assert len(flying.events("s")) == before
    assert held.stats.sequences == 0
    second.turn()
    assert len(second.outcome("j").tokens) == 6
    assert joined(second.events("s")) == second.log("s")


def test_forgetting_everything_while_a_forward_runs_waits_for_it_and_touches_nothing(flying: Rig, held: Held) -> None:
    before = {key: flying.redis.dump(key) for key in flying.redis.keys("tokenloom:{*")}
    threading.Timer(0.05, held.let_go).start()
    flying.cycle.forget(None)
    flying.turn()
    assert flying.outcomes.dropped == ["j"]
    assert held.stats.sequences == 0
    assert {key: flying.redis.dump(key) for key in flying.redis.keys("tokenloom:{*")} == before


def test_what_is_in_the_air_at_the_end_is_made_again_by_the_next_worker(
    calm: Callable[..., list[Any]], make_rig: MakeRig, held: Held
) -> None:
    expected = calm(*SAME)[1]
    flying = fly(make_rig(held), held)
    threading.Timer(0.05, held.let_go).start()
    assert [claimed.id for claimed in flying.cycle.surrender()] == ["j"]
    flying.cycle.close()
    second = make_rig(worker="V")
    second.run(second.claim(SAME[1], "j"))
    done = second.outcome("j")
    assert second.cycle.figures.tokens_generated == 6 - 2
    assert joined(second.events("s")) == second.log("s")
    assert done.tokens == expected.tokens


def test_a_forward_that_breaks_does_not_blame_who_ended_meanwhile(flying: Rig, held: Held) -> None:
    flying.take(flying.claim(step("t", [5], max_tokens=6), "other"))
    flying.cycle.admit()
    held.let_go()
    flying.cycle.turn()
    held.hold(5)
    flying.cycle.turn()
    held.breaks = 5
    flying.cycle.interrupt("j", "stopped")
    flying.cycle.admit()
    held.let_go()
    flying.turn()
    assert flying.outcome("other").reason == "length"
    assert flying.outcomes.errors["j"].code == "stopped"
    assert held.batches[-1] == 1


def test_a_clone_made_while_a_forward_breaks_gets_nobody_blamed_for_want_of_cells(
    calm: Callable[..., list[Any]], make_rig: MakeRig
) -> None:
    expected = calm(*SAME)[1]
    two_pages = EngineSettings(model=None, kv_bytes=2 * PAGE_BYTES)  # type: ignore[arg-type]
    rig = make_rig(FakeEngine(two_pages, FakeSettings(fail_token=77)))
    rig.run(SAME[0], OpenRequest(session="t", seed=4), step("t", [5], max_tokens=2))
    rig.take(rig.claim(SAME[1], "innocent"))
    rig.cycle.turn()
    rig.take(rig.claim(step("t", [77]), "culprit"))
    rig.cycle.turn()
    assert rig.engine.stats.pages_free == 0
    # both are in the batch; and now the innocent's only page has two owners, so that to write there needs a copy
    (clone,) = rig.take(CloneRequest(session="s", targets=["u"], upto=3))
    rig.cycle.admit()
    assert rig.outcome(clone).length == 3
    rig.turn()
    assert rig.outcomes.errors.keys() == {"culprit"}
    assert "told to fail on token 77" in str(rig.outcomes.errors["culprit"])
    assert rig.outcome("innocent").tokens == expected.tokens
    (after,) = rig.run(step("u", [8], max_tokens=2))
    assert after.reason == "length"


def test_a_suspect_is_admitted_only_once_the_forward_of_others_has_ended(flying: Rig, held: Held) -> None:
    marks: list[tuple[bool, bytes | None]] = []
    plain = flying.cycle.store.mark_suspect

    def marking(worker: str, job: str | None) -> None:
        marks.append((flying.cycle.in_the_air, flying.redis.get(suspect_key(flying.keys, "W"))))
        plain(worker, job)

    flying.cycle.store.mark_suspect = marking  # type: ignore[method-assign]
    flying.take(flying.claim(step("t", [1], max_tokens=2), "suspect", deaths=2))
    threading.Timer(0.05, held.let_go).start()
    flying.cycle.admit()
    assert marks == [(False, None), (False, b"suspect")]
    flying.turn()
    assert all(not in_the_air for in_the_air, _ in marks)
    assert flying.outcome("suspect").reason == "length"


def test_cells_of_a_step_that_has_ended_are_there_for_others_before_its_commit(make_rig: MakeRig) -> None:
    rig = make_rig(pages=2)
    rig.run(OpenRequest(session="a", seed=1), OpenRequest(session="b", seed=2))
    first, second = rig.run(step("a", list(range(1, 60)), max_tokens=4), step("b", list(range(1, 60)), max_tokens=60))
    assert (first.reason, second.reason) == ("length", "length")
    assert not rig.outcomes.errors


def test_the_share_outside_the_forward_is_what_the_engine_did_not_use(rig: Rig) -> None:
    engine_before = rig.engine.stats.seconds
    rig.run(OpenRequest(session="s", seed=1), step("s", [1, 2, 3], max_tokens=50))
    figures = rig.cycle.figures
    assert figures.cycles == 50
    assert figures.forward_seconds == pytest.approx(rig.engine.stats.seconds - engine_before)
    assert 0 < figures.forward_seconds < figures.cycle_seconds
    share = 1 - figures.forward_seconds / figures.cycle_seconds
    assert rig.cycle.stats()["outside_forward"] == pytest.approx(share, abs=1e-3)


def test_an_idle_worker_counts_no_time(rig: Rig) -> None:
    rig.run(OpenRequest(session="s", seed=1), step("s", [1]))
    before = rig.cycle.figures.cycle_seconds
    for _ in range(5):
        assert not rig.cycle.turn()
    assert rig.cycle.figures.cycle_seconds == before


# -- the engine alone --------------------------------------------------------------------------------------------------


def test_an_engine_call_waits_for_the_forward_in_the_air(held: Held) -> None:
    landings: list[int] = []
    engine = PipelinedEngine(held, lambda: landings.append(1))  # type: ignore[arg-type]
    sequence = engine.new()
    assert engine.stats.sequences == 1
    held.hold(1)
    engine.launch([entry(sequence)])
    assert engine.in_the_air
    assert engine.stats.forwards == 0, "as they were, without waiting"
    threading.Timer(0.05, held.let_go).start()
    assert engine.length(sequence) == 3
    assert engine.land()[0].token is None
    assert engine.stats.forwards == 1
    engine.close()
    assert landings == [1]


def test_what_a_forward_raises_is_raised_on_landing(held: Held) -> None:
    engine = PipelinedEngine(held)  # type: ignore[arg-type]
    sequence = engine.new()
    held.breaks = 1
    engine.launch([entry(sequence)])
    engine.settle()
    with pytest.raises(EngineError, match="told to break"):
        engine.land()
    engine.launch([entry(sequence)])
    assert len(engine.land()) == 1
    engine.close()


def entry(sequence: int) -> Entry:
    return Entry(sequence, [1, 2, 3])
