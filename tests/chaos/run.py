"""The chaos run: workers are killed, stopped and cut off while producers work, and then everything is accounted for.

The server appends to its file with ``appendfsync always``. What Redis has acknowledged is then in the file, whether the
server is restarted or killed, so that anything lost or doubled is the product's doing and the judge needs to excuse
nothing. (With ``everysec`` a killed server may forget a second: jobs, events and logs alike. Then a subscriber has seen
events that no longer exist, and no judge could tell Redis's loss from the worker's.)
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import leftovers
from chaos.checker import check
from chaos.history import History
from chaos.recorder import Recorder
from chaos.replay import replay
from chaos.spelling import spelling_of
from chaos.torment import StatsWatch, Torment
from tokenloom.producer import Client
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

PRODUCERS = 4
WORKERS = 3
#: Seconds closed sessions are kept: longer than any outage here, and than the recorder needs.
CLOSED_TTL = 15


@dataclass(frozen=True)
class Plan:
    """``every``: seconds between two disturbances; ``pace``: between two requests of one producer; ``slow``: of a
    forward of the engine fake, so that kills strike in the middle of steps.
    """

    seconds: float
    seed: int
    folder: Path
    model: Path | None = None
    every: float = 2.5
    pace: float = 0.12
    slow: float = 0.015
    lease: float = 2.0
    heartbeat: float = 0.5

    @property
    def engine(self) -> dict[str, Any]:
        """Settings that decide about tokens, and so hold in the undisturbed run as well.

        The fake has so few pages and sequences that sessions are evicted and steps parked all the time.
        """
        if self.model is not None:
            return {"engine": "ggml", "model": self.model, "kv_bytes": "256M", "threads": 1, "events_kept": 1 << 24}
        return {
            "engine": "fake",
            "kv_bytes": 96 * 16384,
            "max_sequences": 24,
            "fake_context": 1024,
            "fake_end_one_in": 200,
            "events_kept": 1 << 24,
        }

    @property
    def disturbed(self) -> dict[str, Any]:
        """All settings of the workers that are disturbed."""
        return {
            **self.engine,
            "fake_seconds": self.slow,
            "heartbeat": self.heartbeat,
            "lease": self.lease,
            "grace": 1,
            "closed_ttl": CLOSED_TTL,
            # so few that what RQ does not know yet would be forgotten, were it not kept regardless
            "remember": 1,
            # every death here comes from outside, and three within seconds would pass for a step's own doing
            "max_deaths": 9,
        }


@dataclass
class Report:
    """How it went. ``counts``: what was done to the workers; ``stats``: what they say of themselves."""

    plan: Plan
    violations: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    stats: Counter[str] = field(default_factory=Counter)
    took: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        def line(name: str, counter: Counter[str]) -> str:
            return f"{name:12} " + ", ".join(f"{key} {value}" for key, value in sorted(counter.items()))

        times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.took.items())
        shown = [f"  {violation}" for violation in self.violations[:40]]
        return "\n".join(
            [
                f"chaos, seed {self.plan.seed}: {times}",
                line("disturbed", self.counts),
                line("workers", self.stats),
                line("checked", self.figures),
                f"violations   {len(self.violations)}" + (f" (see {self.plan.folder})" if self.violations else ""),
                *shown,
            ]
        )


def chaos(plan: Plan) -> Report:
    """All of it. Files of the run are in ``plan.folder``."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    report = Report(plan)
    server = ValkeyServer(appendfsync="always")
    server.start(60)
    torment: Torment | None = None
    producers: list[subprocess.Popen[bytes]] = []
    calm = ThreadPoolExecutor(1)
    try:
        torment = Torment(
            server,
            lambda name: WorkerProcess(server.url, plan.folder / f"{name}.log", name=name, settings=plan.disturbed),
            plan.seed,
            workers=WORKERS,
            lease=plan.lease,
            every=plan.every,
        )
        recorder = Recorder(server.url, plan.folder, PRODUCERS)
        recorder.start()
        producers = [start_producer(plan, server.url, number) for number in range(PRODUCERS)]
        watch = StatsWatch(server.url)
        disturb(plan, torment, watch, report)
        history = settle(plan, server, producers, recorder, report)
        began = time.monotonic()
        reference = calm.submit(replay, history, plan.folder, plan.engine, patience=120 + plan.seconds)
        close(plan, server, torment, history, watch, report)
        calm.shutdown()
        report.took["undisturbed"] = time.monotonic() - began
    finally:
        for producer in producers:
            producer.kill()
            producer.wait()
        if torment is not None:
            torment.kill_rest()
        server.close()
    verdict = check(history, reference.result(), spelling_of(plan.model))
    report.figures = verdict.figures
    report.violations += verdict.violations
    if not report.counts["kills"]:
        report.violations.append("no worker was killed")
    (plan.folder / "report.txt").write_text(f"{report}\n\n" + "\n".join([*report.violations, *torment.diary]))
    return report


def judge_again(plan: Plan) -> Report:
    """Run the jobs of a former run's history undisturbed and judge it anew."""
    history = History.load(plan.folder / "history.json")
    reference = replay(history, plan.folder, plan.engine, patience=120 + plan.seconds)
    verdict = check(history, reference, spelling_of(plan.model))
    return Report(plan, verdict.violations, verdict.figures)


def start_producer(plan: Plan, url: str, number: int) -> subprocess.Popen[bytes]:
    """A producer in a process of its own."""
    arguments = [url, str(plan.seed), str(number), str(plan.seconds), str(plan.pace), str(plan.folder)]
    with (plan.folder / f"producer-{number}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "chaos.producing", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parent.parent,
        )


def disturb(plan: Plan, torment: Torment, watch: StatsWatch, report: Report) -> None:
    """The bad time."""
    began = time.monotonic()
    while time.monotonic() - began < plan.seconds:
        torment.tick()
        watch.look()
        time.sleep(0.1)
    torment.end()
    report.counts = torment.counts
    report.took["disturbed"] = time.monotonic() - began


def settle(
    plan: Plan, server: ValkeyServer, producers: list[subprocess.Popen[bytes]], recorder: Recorder, report: Report
) -> History:
    """The good time after it: every job ends, and what there is to read has been read."""
    began = time.monotonic()
    for number, producer in enumerate(producers):
        if code := producer.wait(300):
            log = (plan.folder / f"producer-{number}.log").read_text()
            report.violations.append(f"producer {number} ended with {code}: {log[-2000:]}")
    with server.client() as redis:
        leftovers.wait_quiet(redis, 10)
        history = recorder.finish()
    history.save(plan.folder / "history.json")
    report.took["settling"] = time.monotonic() - began
    return history


def close(
    plan: Plan, server: ValkeyServer, torment: Torment, history: History, watch: StatsWatch, report: Report
) -> None:
    """Every session is closed, and every worker leaves; what is left is counted."""
    began = time.monotonic()
    with server.client() as redis:
        with Client(server.url) as client:
            closing = [client.session(session).close(wait=False) for session in history.logs]
            for pending in closing:
                pending.result(60)
        report.violations += leftovers.sessions_left(redis, CLOSED_TTL + 10)
        time.sleep(3 * plan.heartbeat)
        watch.look()
        report.stats = watch.sums()
        report.violations += leftovers.while_workers_live(redis, [worker.name for worker in torment.workers])
        for worker in torment.workers:
            if code := worker.terminate():
                report.violations.append(f"worker {worker.name} ended with {code} on SIGTERM")
        report.violations += leftovers.after_workers_ended(redis)
    report.took["closing"] = time.monotonic() - began
