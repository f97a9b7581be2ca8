"""The session rules against a model a page long, with workers that crash or are robbed between any two cycles.

The model knows no worker: it says what every session's log must be once all jobs are done, from a list of jobs and a
fake engine that nobody disturbs. Hypothesis finds the interleavings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis
from rig import Rig, joined

from tokenloom.native_ext.engine import Engine, EngineSettings, Entry
from tokenloom.native_ext.fake import FakeEngine
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import BUILT_IN, Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, Request, RewindRequest, StepRequest
from tokenloom.worker.operations import derived_seed
from tokenloom.worker.step import sampling_of

SESSIONS = ("a", "b", "c", "d")
names = st.sampled_from(SESSIONS)


@dataclass
class Model:
    """What sessions hold after the jobs so far. A refused job changes nothing."""

    engine: Engine
    logs: dict[str, list[int]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    def apply(self, request: Request) -> bool:
        """Do the job; False when it has to be refused."""
        name = request.session
        if isinstance(request, OpenRequest):
            if name in self.logs:
                return False
            self.logs[name], self.seeds[name] = [], request.seed or 0
            return True
        if isinstance(request, CloseRequest):
            self.logs.pop(name, None)
            return True
        if name not in self.logs:
            return False
        log = self.logs[name]
        if isinstance(request, RewindRequest):
            if request.to > len(log):
                return False
            del log[request.to :]
        elif isinstance(request, CloneRequest):
            if any(target in self.logs for target in request.targets):
                return False
            for target in request.targets:
                self.logs[target], self.seeds[target] = log[:], derived_seed(self.seeds[name], target)
        else:
            assert isinstance(request, StepRequest)
            return self._step(request, log)
        return True

    def _step(self, request: StepRequest, log: list[int]) -> bool:
        log.extend(request.tokens or [])
        if not log:
            return False
        sampling = sampling_of(request.generation.over(BUILT_IN), self.seeds[request.session])
        sequence = self.engine.new()
        todo = log[:]
        for _ in range(request.generation.max_tokens or 0):
            token = self.engine.forward([Entry(sequence, todo, sampling)])[0].token
            assert token is not None
            log.append(token)
            todo = [token]
        self.engine.remove(sequence)
        return True


class Sessions(RuleBasedStateMachine):
    """Jobs go to a worker in order; at any moment it may crash, or lose its sessions to another."""

    redis: Redis

    @initialize()
    def begin(self) -> None:
        self.redis.flushall()
        self.model = Model(FakeEngine(EngineSettings(model=None)))  # type: ignore[arg-type]
        self.life = 0
        self.jobs: list[tuple[str, Request, bool]] = []
        self.deaths: dict[str, int] = {}
        self.rig = self.fresh_worker()

    def fresh_worker(self) -> Rig:
        self.life += 1
        engine = FakeEngine(EngineSettings(model=None))  # type: ignore[arg-type]
        return Rig(self.redis, engine, worker=f"W{self.life}", incarnation=str(self.life), max_deaths=100)

    def enqueue(self, request: Request) -> None:
        job = f"job-{len(self.jobs)}"
        self.jobs.append((job, request, self.model.apply(request)))
        self.rig.take(self.rig.claim(request, job))

    # -- jobs --------------------------------------------------------------------------------------------------------

    @rule(name=names, seed=st.integers(0, 3))
    def open(self, name: str, seed: int) -> None:
        self.enqueue(OpenRequest(session=name, seed=seed))

    @rule(name=names, tokens=st.lists(st.integers(1, 90), max_size=70), most=st.integers(0, 5))
    def step(self, name: str, tokens: list[int], most: int) -> None:
        generation = Generation(max_tokens=most, temperature=1.0, ignore_eos=True)
        if self.model.logs.get(name) or tokens:
            self.enqueue(StepRequest(session=name, tokens=tokens or None, generation=generation))

    @rule(name=names, clone=names)
    def clone(self, name: str, clone: str) -> None:
        if name != clone:
            self.enqueue(CloneRequest(session=name, targets=[clone]))

    @rule(name=names, to=st.integers(0, 40))
    def rewind(self, name: str, to: int) -> None:
        self.enqueue(RewindRequest(session=name, to=to))

    @rule(name=names)
    def close(self, name: str) -> None:
        self.enqueue(CloseRequest(session=name))

    # -- time and trouble --------------------------------------------------------------------------------------------

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.rig.cycle.turn()

    @precondition(lambda self: bool(self.jobs))
    @rule(heard=st.booleans())
    def crash(self, heard: bool) -> None:
        """A new worker gets every job that RQ has not seen end: all of them, if the worker died before it could say."""
        self.hand_over(dead=True, heard=heard)

    @precondition(lambda self: bool(self.jobs))
    @rule(turns=st.integers(1, 3))
    def robbed(self, turns: int) -> None:
        """The worker was taken for dead and goes on unawares; another has its jobs."""
        old = self.hand_over(dead=True, heard=True)
        for _ in range(turns):
            old.cycle.turn()

    def hand_over(self, *, dead: bool, heard: bool) -> Rig:
        old, self.rig = self.rig, self.fresh_worker()
        if heard:
            self.ended = getattr(self, "ended", set()) | set(old.outcomes.order)
        old.redis.hdel(old.keys.worker(f"W{self.life - 1}"), "incarnation")
        again = [
            self.rig.claim(request, job, deaths=self.died(job))
            for job, request, _ in self.jobs
            if job not in getattr(self, "ended", set())
        ]
        self.rig.take(*again)
        return old

    def died(self, job: str) -> int:
        self.deaths[job] = self.deaths.get(job, 0) + 1
        return self.deaths[job]

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def events_add_up_to_the_log(self) -> None:
        for name in SESSIONS:
            if self.redis.hget(self.rig.keys.session(name), "state") == b"open":
                log = self.rig.log(name)
                assert joined(self.rig.events(name), inherited=log) == log

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.turn()
        for name in SESSIONS:
            state = self.redis.hget(self.rig.keys.session(name), "state")
            assert (state == b"open") == (name in self.model.logs)
            if name in self.model.logs:
                assert self.rig.log(name) == self.model.logs[name]
        for job, _, allowed in self.jobs:
            if job in self.rig.outcomes.results or job in self.rig.outcomes.errors:
                outcome = self.rig.outcome(job)
                assert isinstance(outcome, TokenloomError) != allowed, (job, outcome)
        finished = [e.job for name in SESSIONS for e in self.rig.events(name) if e.type == "finished"]
        assert len(finished) == len(set(finished)), "a step finished twice"


def test_whatever_happens_to_workers_sessions_are_as_the_model_says(redis: Redis) -> None:
    machine = type("Machine", (Sessions,), {"redis": redis})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
