"""The main job on a real model: eight conversations at once, a clone, a rewind, a worker killed and started again.

`make demo` runs this. It says what it does in plain words, and ends with 0 only if everything it claims was so.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from demo_checks import Checks, delivery, endings, log_of, stored
from demo_parts import Reader, Server, Worker, model_path

from tokenloom.producer import Client, Event, Session, Step, StepResult
from tokenloom.schemas.events import FinishedEvent, TokensEvent

PROMPTS = {
    "lighthouse": "Write the beginning of a story about a lighthouse keeper.",
    "robot": "Write the beginning of a story about a robot who learns to paint.",
    "bread": "Explain to a beginner how bread is baked.",
    "rain": "Why does it rain?",
    "letter": "Write a friendly letter to a neighbour about a lost cat.",
    "mountain": "Describe the view from a high mountain in the morning.",
    "market": "Describe a busy market in an old town.",
    "history": "Tell me something interesting about the history of clocks.",
}
CLONED, REWOUND = "lighthouse", "robot"
CLONES = [f"{CLONED}-{number}" for number in (1, 2, 3, 4)]
ASK_MORE = "Go on, and add a surprise."
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
FIRST, SECOND = 20, 40  # tokens of a first and of a second step
BEFORE_THE_KILL = 8  # tokens of each second step that are delivered before the worker dies


@dataclass
class Play:
    """One run of the same jobs. ``results`` are the steps' results by session and step number."""

    client: Client
    reader: Reader
    prefix: str
    sessions: dict[str, Session] = field(default_factory=dict)
    steps: dict[tuple[str, int], Step] = field(default_factory=dict)
    results: dict[tuple[str, int], StepResult] = field(default_factory=dict)

    def first_round(self) -> None:
        """Open all sessions at once, each with a step right behind it."""
        opening = []
        for number, (name, prompt) in enumerate(PROMPTS.items()):
            session = self._seat(name)
            opening.append(self.client.open(session.id, seed=1000 + number, defaults=SAMPLING, wait=False))
            self._step(name, 1, prompt, FIRST)
        for pending in opening:
            pending.result(60)
        self.finish(1)

    def branch(self) -> tuple[int, int]:
        """Clone one session into four, and take half of another's answer back: its length before and after."""
        targets = [self.prefix + name for name in CLONES]
        self.sessions[CLONED].clone(targets=targets, seeds=[2001, 2002, 2003, 2004])
        for name in CLONES:
            self._seat(name)
        before = self.results[REWOUND, 1].length
        return before, self.sessions[REWOUND].rewind(before - FIRST // 2).length

    def second_round(self) -> None:
        """A step for every session; the rewound one just goes on from where it was cut."""
        for name in self.sessions:
            self._step(name, 2, None if name == REWOUND else ASK_MORE, SECOND)

    def finish(self, number: int) -> None:
        """Wait for the steps of a round."""
        for (name, round_), step in self.steps.items():
            if round_ == number:
                self.results[name, number] = step.result(timeout=120)

    def delivered(self, number: int) -> dict[str, int]:
        """How many tokens of each step of a round have reached the reader."""
        return {name: self._delivered(step) for (name, round_), step in self.steps.items() if round_ == number}

    def ended(self, step: Step) -> bool:
        """Whether the reader has seen the step's end."""
        events = list(self.reader.events[step.session])
        return any(isinstance(event, FinishedEvent) and event.job == step.id for event in events)

    def _delivered(self, step: Step) -> int:
        events = list(self.reader.events[step.session])
        return sum(len(e.tokens) for e in events if isinstance(e, TokensEvent) and e.job == step.id)

    def _seat(self, name: str) -> Session:
        session = self.sessions[name] = self.client.session(self.prefix + name)
        self.reader.add(session)
        return session

    def _step(self, name: str, number: int, prompt: str | None, most: int) -> None:
        messages = None if prompt is None else [{"role": "user", "content": prompt}]
        self.steps[name, number] = self.sessions[name].step(messages=messages, max_tokens=most)


class Screen:
    """Prints the text of all streams as it arrives, a line at a time."""

    def __init__(self) -> None:
        self.on = True
        self._lines: dict[str, str] = {}

    def show(self, event: Event) -> None:
        """Called with each event, by the reader."""
        if not isinstance(event, (TokensEvent, FinishedEvent)):
            return
        line = self._lines.get(event.session, "") + event.text.replace("\n", " ")
        if len(line) >= 72 or isinstance(event, FinishedEvent):
            if self.on and line.strip():
                print(f"  {event.session:>13} | {line.strip()}", flush=True)
            line = ""
        self._lines[event.session] = line


def main() -> int:
    """The demo; what the process ends with."""
    began = time.monotonic()
    model = model_path()
    with tempfile.TemporaryDirectory(prefix="tokenloom-demo-") as folder:
        server = Server(Path(folder))
        worker = Worker(server.url, Path(folder) / "worker.log", model)
        try:
            print(f"Valkey {server.version()} is running, with its append-only file on.")
            print(f"Starting the worker: rq worker -w ... -S ... --name {worker.name} steps   ({model.name})")
            print(f"It was ready after {worker.start():.1f} s.")
            failed = play(Client(server.url), worker)
        except Exception as error:
            print(f"\nFAILED: {type(error).__name__}: {error}\n\nThe worker's log ends with:\n{worker.said()}")
            return 1
        finally:
            worker.stop()
            server.stop()
    if failed:
        print(f"\n{failed} of the checks did not hold.")
        return 1
    print(f"\nAll of it held. That took {time.monotonic() - began:.0f} s.")
    return 0


def play(client: Client, worker: Worker) -> int:
    """Both runs and their comparison; how many checks failed."""
    screen, checks = Screen(), Checks()
    reader = Reader(client, screen.show)
    run = Play(client, reader, "")

    print(
        f"\nEight sessions are opened at once, each gets a prompt and {FIRST} tokens. This is what their streams say:\n"
    )
    run.first_round()
    print(f"\nThe session {CLONED!r} is cloned into four, and half of {REWOUND!r}'s answer is taken back.")
    before, after = run.branch()
    print(f"The clones share its cells; nothing was computed again. {REWOUND!r} went from {before} to {after} tokens.")

    print(f"\nAll {len(run.sessions)} go on for up to {SECOND} tokens, and the worker is killed in mid-stream:\n")
    run.second_round()
    cut = interrupt(run, worker)
    run.finish(2)
    reader.wait_for(lambda: all(run.ended(step) for step in run.steps.values()), 10)
    screen.on = False

    print(f"\nThe same jobs again, in new sessions with the same seeds, without a kill ({len(run.steps)} steps) ...")
    again = Play(client, reader, "again-")
    again.first_round()
    again.branch()
    again.second_round()
    again.finish(2)
    reader.close()

    print("\nWhat held:")
    check(checks, run, again, cut)
    stats = client.connection.hgetall(client.keys.worker(worker.name))
    print(f"\n{float(stats[b'sessions_per_forward']):.1f} sessions shared each forward, on average.")
    return checks.failed


def interrupt(run: Play, worker: Worker) -> dict[str, int]:
    """SIGKILL once every stream has begun, and a new start; how many tokens each had delivered by then."""

    def under_way() -> bool:
        return all(
            count >= BEFORE_THE_KILL or run.ended(run.steps[name, 2]) for name, count in run.delivered(2).items()
        )

    if not run.reader.wait_for(under_way, 60):
        raise TimeoutError(f"the second steps did not get under way: {run.delivered(2)}")
    worker.kill()
    time.sleep(0.3)  # what was committed before the kill still arrives
    cut = {name: count for name, count in run.delivered(2).items() if not run.ended(run.steps[name, 2])}
    print(f"\n  *** SIGKILL. {len(cut)} steps were cut off, after {min(cut.values(), default=0)}", end="")
    print(f" to {max(cut.values(), default=0)} of their tokens. Nothing moves now. ***")
    time.sleep(0.7)
    silent = cut == {name: count for name, count in run.delivered(2).items() if name in cut}
    restarted = time.monotonic()
    seconds = worker.start()

    def goes_on() -> bool:
        now = run.delivered(2)
        return any(now[name] > count for name, count in cut.items())

    run.reader.wait_for(goes_on, 60)
    flowing = time.monotonic() - restarted
    print(f"  *** Started again under the same name: ready after {seconds:.1f} s, tokens after {flowing:.1f} s ***\n")
    return cut if silent else {}


def check(checks: Checks, run: Play, again: Play, cut: dict[str, int]) -> None:
    """Everything the demo claims."""
    few = [] if len(cut) >= 8 else [f"only {len(cut)} steps were cut off, or events came from a dead worker"]
    checks.expect("the kill struck at least 8 steps in mid-stream", few)
    kept = {name: stored(run.client, session) for name, session in run.sessions.items()}
    received = {name: list(run.reader.events[session.id]) for name, session in run.sessions.items()}
    checks.expect(
        "every event was delivered once, in order, and none is missing",
        [p for name in run.sessions for p in delivery(name, received[name], kept[name])],
    )
    parents: dict[str, list[int]] = {}
    wrong, different = [], []
    for name, session in run.sessions.items():  # sources before their clones
        steps = [step.id for (owner, _), step in run.steps.items() if owner == name]
        wrong += endings(name, received[name], steps)
        source = {} if name not in CLONES else {CLONED: parents[CLONED]}
        log, problems = log_of(name, received[name], source)
        wrong += problems
        parents[name] = log[: run.results[name, 1].length] if (name, 1) in run.results else log
        if log != session.tokens():
            different.append(f"{name}: {len(log)} tokens by its events, {len(session.tokens())} in Redis")
    checks.expect("positions follow one another, and each step ended once", wrong)
    checks.expect("the log in Redis is the sum of the events", different)
    checks.expect("the streams went on: every step that was cut off came to its end", unfinished(run, cut))
    cut_off = run.results[REWOUND, 1].tokens[FIRST // 2 :]
    repeated = run.results[REWOUND, 2].tokens[: len(cut_off)] == cut_off
    checks.expect(
        f"{REWOUND!r} said again what had been taken back: chance depends on seed and position alone",
        [] if repeated else ["it said something else"],
    )
    answers = {run.results[name, 2].text for name in CLONES}
    checks.expect(
        "the four clones, with seeds of their own, say different things",
        [] if len(answers) == len(CLONES) else [f"only {len(answers)} different answers"],
    )
    checks.expect("text and tokens equal those of the uninterrupted run", differences(run, again))


def unfinished(run: Play, cut: dict[str, int]) -> list[str]:
    """Steps that got no further than where the kill had cut them off."""
    results = {name: run.results[name, 2] for name in cut}
    return [
        f"{name}: {len(results[name].tokens)} tokens, {count} before the kill, ended as {results[name].reason}"
        for name, count in cut.items()
        if len(results[name].tokens) <= count or results[name].reason not in ("stop", "length")
    ]


def differences(run: Play, again: Play) -> list[str]:
    """Steps whose tokens or text are not those of the other run."""
    if run.results.keys() != again.results.keys():
        return ["the runs did not make the same steps"]
    return [
        f"{name}, step {number}: {run.results[name, number].text!r} and {other.text!r}"
        for (name, number), other in again.results.items()
        if (run.results[name, number].tokens, run.results[name, number].text) != (other.tokens, other.text)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
