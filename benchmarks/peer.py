"""The peer: llama.cpp's server, from the package ``xllamacpp``, in a process of its own.

Both ship a ggml under the same library names, so they cannot share a process. The child reads one JSON object a line
from its standard input and answers with one a line: first that it is ready, then one answer a request.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Serving:
    """How the peer is set up. ``slots`` sessions of at most ``context`` tokens each; ``repack`` is its native path."""

    model: str
    threads: int
    slots: int
    context: int
    repack: bool = True


class PeerMissing(RuntimeError):
    """The peer cannot be measured; the message says why."""


class Peer:
    """One llama.cpp server. ``note`` says how it differs from what was asked for, if it does."""

    def __init__(self, serving: Serving) -> None:
        """Raises PeerMissing when the package is not installed, or its server does not start."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise PeerMissing("xllamacpp is not installed: pip install xllamacpp")
        self.note = ""
        try:
            self._begin(serving)
        except PeerMissing as error:
            self._begin(Serving(**{**asdict(serving), "repack": False}))
            self.note = f"repacked weights off, for with them {error}"

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[float, int]:
        """Continue every prompt by ``count`` tokens, all at once: seconds, tokens generated. Raises PeerMissing."""
        answer = self._ask({"prompts": [list(prompt) for prompt in prompts], "count": count})
        return float(answer["seconds"]), int(answer["tokens"])

    def memory(self) -> int:
        """Bytes resident at the peak."""
        return peak_memory(self._process.pid)

    def close(self) -> None:
        """End the child."""
        self._process.kill()
        self._process.wait()

    def _begin(self, serving: Serving) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._ask(asdict(serving))
        self.run([[1, 2, 3, 4]], 2)  # its native path is known to die at the first forward on some machines

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerMissing(f"llama.cpp's process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def peak_memory(pid: int) -> int:
    """The most bytes a process has had resident, pages of mapped files included (VmHWM of /proc)."""
    return status_bytes(pid, "VmHWM")


def status_bytes(pid: int, field: str) -> int:
    """A size in a process's status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {field}")


# -- the child --------------------------------------------------------------------------------------------------------


def serve() -> None:
    """The child's main function."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the library prints is no reply
    import xllamacpp

    serving = Serving(**json.loads(sys.stdin.readline()))
    params = xllamacpp.CommonParams()
    params.model.path = serving.model
    params.n_parallel = serving.slots
    params.n_ctx = serving.slots * serving.context
    params.n_batch = params.n_ubatch = 512
    params.no_extra_bufts = not serving.repack
    params.verbosity = -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = serving.threads
    server = xllamacpp.Server(params)
    answer(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        answer(replies, complete(server, request["prompts"], request["count"]))
    os._exit(0)  # its threads may outlive a plain exit


def answer(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def complete(server: Any, prompts: Sequence[Sequence[int]], count: int) -> dict[str, Any]:
    """Stream every completion at once, greedily and past stop tokens."""
    together = threading.Barrier(len(prompts) + 1)

    def one(prompt: Sequence[int]) -> int:
        chunks: list[dict[str, Any]] = []
        request = {
            "prompt": list(prompt),
            "n_predict": count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        together.wait()
        server.handle_completions(request, chunks.append)
        return int(chunks[-1]["usage"]["completion_tokens"])

    with ThreadPoolExecutor(len(prompts)) as pool:
        running = [pool.submit(one, prompt) for prompt in prompts]
        together.wait()
        began = time.perf_counter()
        tokens = sum(future.result() for future in running)
        return {"seconds": time.perf_counter() - began, "tokens": tokens}


if __name__ == "__main__":
    serve()
