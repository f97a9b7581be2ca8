"""One producer of the chaos test, a process of its own: python -m chaos.producing URL SEED NUMBER SECONDS FOLDER.

It opens sixteen sessions and for SECONDS goes on asking things of them, through tokenloom.producer alone: steps,
clones, rewinds, closes, cancels, and a few requests that have to be refused. What it does is drawn from SEED and
NUMBER. Every job is written to FOLDER/jobs-NUMBER.jsonl before it is enqueued, under an id chosen here, so that
enqueuing can be repeated when Redis was away; what came back goes to FOLDER/answers-NUMBER.jsonl. It ends when every
job has ended.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenloom.producer import Client
from tokenloom.producer.step import Pending, Step
from tokenloom.schemas import Request, TokenloomError, Versioned
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.requests import CloneRequest, CloseRequest, OpenRequest, RewindRequest, StepRequest

SESSIONS = 16
WAITERS = 8
#: Seconds after which a job that has not ended counts as lost.
LOST_AFTER = 240.0
#: Most jobs of one session on their way at once.
AHEAD = 4
#: Jobs after which a session is closed at the latest: RQ and the session remember that many, and logs stay short.
LONGEST_LIFE = 48

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 12},
    {"temperature": 1.0},
    {"temperature": 1.2, "presence_penalty": 0.6, "penalty_window": -1},
    {"temperature": 0.9, "repetition_penalty": 1.3, "stop": ["th", "e."]},
    {"temperature": 0.7, "logprobs": 2},
    # of the engine fake, whose tokens are bytes: characters of two to four bytes, and what is none
    {"temperature": 1.0, "logit_bias": dict.fromkeys((0xC3, 0xA9, 0xE2, 0x82, 0xF0, 0x9F, 0x98, 0x80), 66.0)},
)


@dataclass
class Slot:
    """A session in use. ``floor``: a length its log certainly has, whatever becomes of the ``ahead`` jobs on their way;
    ``last`` is the latest of them.
    """

    id: str
    floor: int = 0
    jobs: int = 0
    ahead: int = 0
    last: str = ""
    steps: deque[Step] = field(default_factory=deque)


class Diary:
    """A file of JSON lines that is complete at any time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def write(self, **fields: Any) -> None:
        with self._lock:
            self._file.write(json.dumps(fields) + "\n")


class Producer:
    """Asks, and keeps account."""

    def __init__(self, url: str, seed: int, number: int, folder: Path, pace: float) -> None:
        self.client = Client(url, patience=LOST_AFTER)
        self.random = random.Random(f"{seed}/{number}")
        self.number = number
        self.pace = pace
        self.jobs = Diary(folder / f"jobs-{number}.jsonl")
        self.answers = Diary(folder / f"answers-{number}.jsonl")
        self.pool = ThreadPoolExecutor(WAITERS)
        self.waits: list[Future[None]] = []
        self.names = 0
        self.ids = 0
        self.closed: deque[Slot] = deque()
        self.lock = threading.Lock()

    # -- asking --------------------------------------------------------------------------------------------------------

    def name(self, *, over: bool = False) -> str:
        """A session id nobody had, or now and then one that was closed; ``over``: whose close has been answered."""
        if len(self.closed) > 2 and self.random.random() < 0.4 and (not over or self.closed[0].ahead == 0):
            return self.closed.popleft().id
        self.names += 1
        return f"p{self.number}-{self.names}"

    def ask(self, slots: Sequence[Slot], request: Request, op: str, **facts: Any) -> None:
        """Enqueue, again until Redis has taken it; a thread of the pool waits for the end. The first slot is the job's
        own, the others are its targets.
        """
        self.ids += 1
        id = f"{op}-{self.number}-{self.ids}"
        with self.lock:
            for slot in slots:
                slot.ahead, slot.last = slot.ahead + 1, id
        fields = request.model_dump(exclude_none=True)
        self.jobs.write(id=id, op=op, **{**fields, **facts})
        office = self.client._office
        while True:
            try:
                watch = office.place(request, {}, id)
                break
            except (ConnectionError, OSError) as error:
                print(f"{id}: {error}", flush=True)
                time.sleep(0.1)
        slots[0].jobs += 1
        follow = self.random.random() < 0.3
        if op == "step":
            step = Step(self.client.connection, office, watch)
            if "expect" not in facts:  # it might be cancelled instead
                slots[0].steps.append(step)
            self.waits.append(self.pool.submit(self._wait_for_step, slots[0], step, follow))
        else:
            pending: Pending[Versioned] = Pending(self.client.connection, office, watch, lambda result: result)
            self.waits.append(self.pool.submit(self._wait_for_other, slots, pending))

    def open(self) -> Slot:
        """A session begun, under a seed of its own."""
        slot = Slot(self.name())
        defaults = Generation(temperature=0.9, top_p=0.95) if self.random.random() < 0.3 else None
        self.ask([slot], OpenRequest(session=slot.id, seed=self.random.getrandbits(64), defaults=defaults), "open")
        return slot

    def step(self, slot: Slot) -> None:
        """Append something, or nothing, and generate."""
        draw = self.random.random
        fields: dict[str, Any] = {}
        kind = draw()
        if kind < 0.55 or slot.floor == 0:
            fields["tokens"] = [self.random.randrange(97, 123) for _ in range(self.random.randint(1, 24))]
        elif kind < 0.75:
            fields["text"] = " ".join(self.random.choice(("the", "cat", "sat", "on", "a", "mat")) for _ in range(5))
        elif kind < 0.85:
            fields["messages"] = [{"role": "user", "content": "tell me more"}]
        settings: dict[str, Any] = dict(self.random.choice(SETTINGS))
        settings["max_tokens"] = 0 if draw() < 0.05 else self.random.randint(2, 48)
        if draw() < 0.5:
            settings["ignore_eos"] = True
        facts: dict[str, Any] = {}
        if draw() < 0.04:
            fields["deadline"] = time.time() + draw() * 0.6
        elif draw() < 0.03:
            fields["tokens"], facts["expect"] = [1 << 23], "invalid"
            fields.pop("text", None)
            fields.pop("messages", None)
        request = StepRequest(session=slot.id, generation=Generation(**settings), **fields)
        self.ask([slot], request, "step", **facts)

    def clone(self, slot: Slot) -> Slot:
        """A clone of the whole log, or of what is certainly there; it takes the place of another session."""
        target = self.name(over=True)  # a clone does not wait for its target to become free
        upto = self.random.randint(0, slot.floor) if slot.floor and self.random.random() < 0.6 else None
        seeds = [self.random.getrandbits(64)] if self.random.random() < 0.5 else None
        made = Slot(target, floor=slot.floor if upto is None else upto)
        self.ask([slot, made], CloneRequest(session=slot.id, targets=[target], upto=upto, seeds=seeds), "clone")
        return made

    def rewind(self, slot: Slot) -> None:
        """To a position that is certainly there, or to one that is certainly not."""
        if self.random.random() < 0.1:
            self.ask([slot], RewindRequest(session=slot.id, to=1 << 20), "rewind", expect="invalid")
            return
        with self.lock:
            slot.floor, slot.last = self.random.randint(0, slot.floor), ""  # what is on its way no longer says how long
        self.ask([slot], RewindRequest(session=slot.id, to=slot.floor), "rewind")

    def close(self, slot: Slot) -> None:
        """The session ends; its id may be used again."""
        self.ask([slot], CloseRequest(session=slot.id), "close")
        self.closed.append(slot)

    def cancel(self, slot: Slot) -> None:
        """Ask for one of the steps on their way to end."""
        with self.lock:
            steps = list(slot.steps)
        if not steps:
            return
        step = self.random.choice(steps)
        self.answers.write(id=step.id, cancel=True)
        step.cancel()

    # -- hearing -------------------------------------------------------------------------------------------------------

    def _wait_for_step(self, slot: Slot, step: Step, follow: bool) -> None:
        try:
            if follow:
                ids = [event.id for event in step.events(timeout=LOST_AFTER)]
                # without an id: made up for a reader who comes when the stream has gone
                self.answers.write(id=step.id, **({"late": True} if None in ids else {"seen": ids}))
            result = step.result(LOST_AFTER)
            self._heard(step.id, result)
            length = result.length
        except BaseException as error:
            self._failed(step.id, error)
            length = 0
        with self.lock:
            slot.ahead -= 1
            if step in slot.steps:
                slot.steps.remove(step)
            if length and slot.last == step.id:
                slot.floor = length

    def _wait_for_other(self, slots: Sequence[Slot], pending: Pending[Versioned]) -> None:
        try:
            self._heard(pending.id, pending.result(LOST_AFTER))
        except BaseException as error:
            self._failed(pending.id, error)
        with self.lock:
            for slot in slots:
                slot.ahead -= 1

    def _heard(self, id: str, result: Versioned) -> None:
        self.answers.write(id=id, result=result.model_dump(exclude_none=True))

    def _failed(self, id: str, error: BaseException) -> None:
        code = error.code if isinstance(error, TokenloomError) else f"{type(error).__name__}: {error}"
        self.answers.write(id=id, error=code)

    # -- all of it -----------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Until time is up and every job has ended."""
        slots = [self.open() for _ in range(SESSIONS)]
        until = time.monotonic() + seconds
        actions = self._actions()
        while time.monotonic() < until:
            time.sleep(self.random.expovariate(1 / self.pace))
            place = self.random.randrange(SESSIONS)
            slot, action = slots[place], self.random.choices(list(actions), list(actions.values()))[0]
            if action == "cancel":
                self.cancel(slot)
            elif slot.ahead >= AHEAD:
                continue
            elif slot.jobs >= LONGEST_LIFE or action == "close":
                self.close(slot)
                slots[place] = self.open()
            elif action == "step":
                self.step(slot)
            elif action == "rewind" and slot.floor:
                self.rewind(slot)
            elif action == "clone":
                other = self.random.randrange(SESSIONS)
                if other != place:
                    self.close(slots[other])
                    slots[other] = self.clone(slot)
        for wait in self.waits:
            wait.result()

    @staticmethod
    def _actions() -> Mapping[str, float]:
        return {"step": 72, "cancel": 10, "rewind": 8, "clone": 5, "close": 5}


def main(url: str, seed: str, number: str, seconds: str, pace: str, folder: str) -> None:
    Producer(url, int(seed), int(number), Path(folder), float(pace)).run(float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
