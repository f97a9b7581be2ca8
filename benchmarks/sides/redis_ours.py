"""tokenloom as its users run it: a server with its append-only file on, a worker process, a producer that streams."""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.ours import Ours
from benchmarks.sides.engine_ours import tables
from tokenloom.producer import Client, Session
from tokenloom.schemas import TokensEvent

#: Seconds after which a stream that stands still counts as lost.
PATIENCE = 240.0


class Streams:
    """Follows sessions and notes when each of their tokens arrived, and when it was written (milliseconds)."""

    def __init__(self, client: Client, sessions: list[Session]) -> None:
        self.arrived: dict[str, list[tuple[int, float]]] = {session.id: [] for session in sessions}
        self._follower = client.follow(sessions, from_id="0")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for event in self._follower:
            if isinstance(event, TokensEvent):
                written = int(str(event.id).partition("-")[0])
                self.arrived[event.session] += [(written, time.perf_counter())] * len(event.tokens)

    def wait(self, tokens: int, written_after: int = 0) -> None:
        """Until every session has so many tokens that were written after that."""
        until = time.perf_counter() + PATIENCE
        while any(sum(w > written_after for w, _ in seen) < tokens for seen in list(self.arrived.values())):
            if time.perf_counter() > until:
                raise TimeoutError(f"a stream stood still for {PATIENCE:g} s")
            time.sleep(0.005)

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()


class RedisOurs:
    """One server, one worker, one client over a unix socket."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings``: model, threads, kv_bytes."""
        self._threads = settings["threads"]
        self._ours = Ours(Path(settings["model"]), threads=settings["threads"], kv_bytes=settings["kv_bytes"])

    def about(self) -> dict[str, Any]:
        return {
            "version": f"tokenloom {version('tokenloom')}", "threads": self._threads,
            "note": "append-only file on, unix socket",
            "instructions": "kernels {}, attention {}, rows {}".format(*tables()),
        }  # fmt: skip

    def generate(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Continue every prompt by ``count`` tokens, all at once; with the share of cycles outside the forward."""
        before = self._ours.stats()
        seconds, made = self._ours.run(prompts, count)
        after = self._ours.stats()
        forward, cycle = (after[name] - before[name] for name in ("forward_seconds", "cycle_seconds"))
        return {"seconds": seconds, "tokens": made, "outside_forward": 1 - forward / cycle if cycle else 0.0}

    def chats(self, arrivals: list[float], prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Prompts that arrive at given seconds: when (seconds from the start) each token of each was there."""
        sessions = self._open(len(prompts))
        streams = Streams(self._ours.client, sessions)
        began = time.perf_counter()
        for arrival, session, prompt in sorted(zip(arrivals, sessions, prompts, strict=True), key=lambda chat: chat[0]):
            time.sleep(max(0.0, began + arrival - time.perf_counter()))
            session.step(tokens=prompt, max_tokens=count, temperature=0, ignore_eos=True)
        streams.wait(count)
        streams.close()
        self._close(sessions)
        return {"times": [[at - began for _, at in streams.arrived[session.id]] for session in sessions]}

    def restart(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Kill the worker in mid-stream, ``count`` tokens behind every prompt, and start it again under its name.

        Seconds from its start to each session's next token.
        """
        sessions = self._open(len(prompts))
        streams = Streams(self._ours.client, sessions)
        steps = [
            session.step(tokens=prompt, max_tokens=count + 400, temperature=0, ignore_eos=True)
            for session, prompt in zip(sessions, prompts, strict=True)
        ]
        streams.wait(count)
        self._ours.worker.kill()
        killed = int(time.time() * 1000)
        began = time.perf_counter()
        self._ours.worker.start(born=False)
        streams.wait(1, killed)
        first = [next(at for w, at in streams.arrived[s.id] if w > killed) - began for s in sessions]
        for step in steps:
            step.cancel()
        for step in steps:
            step.result(60)
        streams.close()
        self._close(sessions)
        return {"seconds": first}

    def close(self) -> None:
        self._ours.close()

    def _open(self, many: int) -> list[Session]:
        return self._ours.open(many)

    def _close(self, sessions: list[Session]) -> None:
        for pending in [session.close(wait=False) for session in sessions]:
            pending.result(60)


def start(settings: dict[str, Any]) -> RedisOurs:
    """The side, ready."""
    return RedisOurs(settings)
