"""tokenloom as its users run it: a server, a worker process, and a producer that streams from it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_memory, status_bytes
from tokenloom.producer import Client, Session
from tokenloom.schemas import FinishedEvent, TokensEvent
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

NAME = "measured"
HEARTBEAT = 0.2


class Ours:
    """One server, one worker, one client over a unix socket."""

    def __init__(self, model: Path, *, threads: int, kv_bytes: int) -> None:
        """``threads`` of a forward; ``kv_bytes`` of cells at most."""
        self.model, self.kv_bytes = model, kv_bytes
        self._folder = tempfile.TemporaryDirectory(prefix="tokenloom-benchmark-")
        self.server = ValkeyServer()
        self.server.start()
        kernels = os.environ.get("TOKENLOOM_KERNELS", "auto")
        settings = {
            "model": model, "threads": threads, "kv_bytes": kv_bytes, "heartbeat": HEARTBEAT, "kernels": kernels,
        }  # fmt: skip
        log = Path(self._folder.name) / "worker.log"
        self.worker = WorkerProcess(self.server.url, log, name=NAME, settings=settings)
        self.worker.start()
        self.client = Client(self.server.url)
        self._pages: list[float] = []
        self._round = 0

    def prompts(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """The first ``length`` tokens of each text, in the model's own vocabulary."""
        prompts = []
        for text in texts:
            session = self.client.open()
            session.step(text, max_tokens=0).result(120)
            tokens = session.tokens()
            if len(tokens) < length:
                raise ValueError(f"{text[:40]!r}... has {len(tokens)} tokens; {length} are needed")
            prompts.append(tokens[:length])
            session.close()
        return prompts

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, int]:
        """Continue every prompt by ``count`` tokens, all at once: seconds, tokens generated.

        From the first job's enqueuing to the last event's arrival. Opening and closing the sessions is not counted,
        and no cells are left to share with the next run.
        """
        sessions = self.open(len(prompts))
        waiting = {session.id for session in sessions}
        tokens = 0
        follower = self.client.follow(sessions, from_id="0")
        began = time.perf_counter()
        for session, prompt in zip(sessions, prompts, strict=True):
            session.step(tokens=prompt, max_tokens=count, temperature=0, ignore_eos=True)
        for event in follower:
            if isinstance(event, TokensEvent):
                tokens += len(event.tokens)
            elif isinstance(event, FinishedEvent):
                if event.error is not None:
                    raise RuntimeError(f"a step failed: {event.error.message}")
                waiting.discard(event.session)
                if not waiting:
                    break
        seconds = time.perf_counter() - began
        self._pages.append(self.stats()["pages_used"])
        for pending in [session.close(wait=False) for session in sessions]:
            pending.result(60)
        return seconds, tokens

    def stats(self) -> dict[str, float]:
        """The worker's figures, taken at rest and after all that was asked of it before."""
        for _ in range(2):  # an idle worker takes them anew when something happens
            time.sleep(HEARTBEAT)
            self.client.session("nobody").close()
        asked = time.time()
        while True:
            fields: Any = self.client.connection.hgetall(self.client.keys.worker(NAME))
            if float(fields.get(b"beat", 0)) > asked + HEARTBEAT and fields.get(b"active") == b"0":
                return {name.decode(): number(value) for name, value in fields.items()}
            time.sleep(0.02)

    def memory(self) -> dict[str, float]:
        """Bytes: the peak, what is resident now by kind, and what explains them."""
        stats = self.stats()
        page = self.kv_bytes // int(stats["pages_used"] + stats["pages_free"])
        pid = self.worker.pid
        return {
            "peak": peak_memory(pid),
            "file_now": status_bytes(pid, "RssFile"),
            "anonymous_now": status_bytes(pid, "RssAnon"),
            "model_file": self.model.stat().st_size,
            "kv_in_use": max(self._pages) * page,
        }

    def close(self) -> None:
        """End all of it."""
        self.worker.kill()
        self.client.disconnect()
        self.server.close()
        self._folder.cleanup()

    def open(self, many: int) -> list[Session]:
        self._round += 1
        opening = [self.client.open(f"r{self._round}-{number}", seed=1, wait=False) for number in range(many)]
        return [pending.result(60) for pending in opening]


def number(value: bytes) -> float:
    """A figure of the worker's hash; NaN for what is text."""
    try:
        return float(value)
    except ValueError:
        return float("nan")
