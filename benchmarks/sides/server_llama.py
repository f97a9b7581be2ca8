"""llama.cpp's server from the package ``xllamacpp``, without HTTP: a slot a session, streamed by a callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import xllamacpp


class ServerLlama:
    """One server, which has answered once: its native path is known to die at the first forward on some machines."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings``: model, threads, slots, context (tokens of a slot), repack, unified."""
        params = xllamacpp.CommonParams()
        params.model.path = settings["model"]
        params.n_parallel = settings["slots"]
        params.n_ctx = settings["slots"] * settings["context"]
        params.n_ubatch = 512
        params.kv_unified = settings["unified"]
        params.no_extra_bufts = not settings["repack"]
        params.verbosity = -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
        self._server = xllamacpp.Server(params)
        self._threads = settings["threads"]
        self._note = f"{'unified' if settings['unified'] else 'split'} cells"
        self.generate([[1, 2, 3, 4]], 2)

    def about(self) -> dict[str, Any]:
        return {
            "version": f"xllamacpp {version('xllamacpp')}", "threads": self._threads, "note": self._note,
            "instructions": "as the wheel's engine",
        }  # fmt: skip

    def generate(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Continue every prompt by ``count`` tokens, all at once."""
        began, times = self._stream([0.0] * len(prompts), prompts, count)
        return {"seconds": max(seen[-1] for seen in times) - began, "tokens": sum(map(len, times))}

    def first_tokens(self, prompts: list[list[int]]) -> dict[str, Any]:
        """When (time.time()) each prompt had its first token."""
        shift = time.time() - time.perf_counter()
        _, times = self._stream([0.0] * len(prompts), prompts, 2)
        return {"at": [seen[0] + shift for seen in times]}

    def chats(self, arrivals: list[float], prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Prompts that arrive at given seconds: when (seconds from the start) each token of each was there."""
        began, times = self._stream(arrivals, prompts, count)
        return {"times": [[at - began for at in seen] for seen in times]}

    def close(self) -> None:
        pass

    def _stream(
        self, arrivals: Sequence[float], prompts: Sequence[Sequence[int]], count: int
    ) -> tuple[float, list[list[float]]]:
        together = threading.Barrier(len(prompts) + 1)
        began = 0.0

        def one(number: int) -> list[float]:
            seen: list[float] = []
            chunks: list[Any] = []

            def arrived(chunk: Any) -> None:
                seen.append(time.perf_counter())
                chunks.append(chunk)

            request = {
                "prompt": list(prompts[number]), "n_predict": count, "temperature": 0, "ignore_eos": True,
                "cache_prompt": False, "stream": True, "return_tokens": True,
            }  # fmt: skip
            together.wait()
            if arrivals[number]:
                time.sleep(max(0.0, began + arrivals[number] - time.perf_counter()))
            self._server.handle_completions(request, arrived)
            made = int(chunks[-1]["usage"]["completion_tokens"])
            if made != count:
                raise RuntimeError(f"the server generated {made} tokens instead of {count}")
            # A token may come without text and then without a chunk of its own: its time is the next chunk's.
            return (seen[:count] + [seen[-1]] * count)[:count]

        with ThreadPoolExecutor(len(prompts)) as pool:
            running = [pool.submit(one, number) for number in range(len(prompts))]
            began = time.perf_counter()
            together.wait()
            return began, [future.result() for future in running]


def start(settings: dict[str, Any]) -> ServerLlama:
    """The side, ready."""
    return ServerLlama(settings)
