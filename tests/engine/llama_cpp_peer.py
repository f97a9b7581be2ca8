"""Asks llama.cpp (the package ``xllamacpp``) for tokens and log-probabilities.

``answers`` runs this file in a process of its own: llama.cpp brings a ggml under the same library names as ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Question:
    """Continue ``prompt`` by ``count`` tokens, and give the ``top`` most likely tokens of each step."""

    prompt: list[int]
    count: int = 1
    top: int = 1
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """``tokens`` (steps,), fewer than asked for where a stop token came; ``ids`` and ``logprobs`` (steps, top), of the
    logits as the model gave them, best first."""

    tokens: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


def answers(folder: Path, asked: dict[Path, Sequence[Question]]) -> dict[Path, list[Answer]]:
    """Ask about each model, one process and thread per model, side by side. ``folder`` takes the files in between."""

    def ask(number: int, model: Path, questions: Sequence[Question]) -> list[Answer]:
        request, reply = folder / f"request{number}.json", folder / f"reply{number}.npz"
        request.write_text(json.dumps([asdict(question) for question in questions]))
        command = [sys.executable, __file__, str(model), str(request), str(reply)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"llama.cpp failed on {model}: {done.stderr[-2000:]}")
        with np.load(reply) as arrays:
            names = ("tokens", "ids", "logprobs")
            return [Answer(*(arrays[f"{i}.{name}"] for name in names)) for i in range(len(questions))]

    with ThreadPoolExecutor(len(asked)) as pool:
        jobs = {model: pool.submit(ask, i, model, questions) for i, (model, questions) in enumerate(asked.items())}
    return {model: job.result() for model, job in jobs.items()}


def _main(model: str, request: str, reply: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 1024
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for i, question in enumerate(json.loads(Path(request).read_text())):
        result = server.handle_completions(
            {
                "prompt": question["prompt"],
                "n_predict": question["count"],
                "n_probs": question["top"],
                "temperature": question["temperature"],
                "seed": question["seed"],
                "cache_prompt": False,
            }
        )
        steps = result["choices"][0]["logprobs"]["content"]
        arrays[f"{i}.tokens"] = np.array([step["id"] for step in steps], np.int32)
        arrays[f"{i}.ids"] = np.array([[t["id"] for t in step["top_logprobs"]] for step in steps], np.int32)
        arrays[f"{i}.logprobs"] = np.array([[t["logprob"] for t in step["top_logprobs"]] for step in steps], np.float32)
    np.savez(reply, **arrays)  # type: ignore[arg-type]
    sys.stderr.flush()
    os._exit(0)  # its server's threads may outlive a plain exit


if __name__ == "__main__":
    _main(*sys.argv[1:])
