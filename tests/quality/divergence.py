"""Kullback-Leibler divergence between rows of logits, over the whole vocabulary, and the text it is taken over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.gguf import read_metadata
from tokenloom.worker.text import Tokenizer

Logits = npt.NDArray[np.float32]
TEXTS = ("dictionary.txt", "database.txt")
WINDOW = 512
#: A divergence above llama.cpp's by so much, and above so many nats, is too large. Keys and values in float16 cost
#: about 1e-6.
MOST, FLOOR = 1.1, 1e-5
#: Rows turned into probabilities at a time.
ROWS = 64


@dataclass(frozen=True)
class Divergence:
    """Of so many rows: the mean in nats, its standard error, and how often the most likely token is the same."""

    mean: float
    error: float
    agreement: float
    rows: int


def few(model: Path) -> npt.NDArray[np.int32]:
    """What the tests take, for the sake of time: the beginnings of two windows, int32 (2, 128)."""
    return windows(model, 2)[:, :128]


def windows(model: Path, count: int) -> npt.NDArray[np.int32]:
    """The texts' first ``count`` windows of 512 tokens, alternately from each: int32 (count, 512)."""
    tokenizer = Tokenizer.from_metadata(read_metadata(model))
    cut: list[Iterator[npt.NDArray[np.int32]]] = []
    for name in TEXTS:
        tokens = tokenizer.encode(
            (Path(__file__).parent / "text" / name).read_text(), parse_special=False, add_bos=False
        )
        whole = np.array(tokens[: len(tokens) // WINDOW * WINDOW], np.int32).reshape(-1, WINDOW)
        cut.append(iter(whole))
    out = [window for pair in zip(*cut, strict=False) for window in pair]
    out += [window for rest in cut for window in rest]
    if count > len(out):
        raise ValueError(f"the texts have {len(out)} windows of {WINDOW} tokens, {count} are wanted")
    return np.stack(out[:count])


def ours(model: Path, tokens: npt.NDArray[np.int32], threads: int = 1, kernels: str = "auto") -> Iterator[Logits]:
    """Our engine's logits (512, vocabulary), window by window, each a sequence of its own."""
    before = os.environ.get("TOKENLOOM_KERNELS")
    os.environ["TOKENLOOM_KERNELS"] = kernels
    try:
        engine = load(EngineSettings(model=model, threads=threads, max_batch_tokens=WINDOW, kv_bytes=64 << 20))
    finally:
        del os.environ["TOKENLOOM_KERNELS"]
        if before is not None:
            os.environ["TOKENLOOM_KERNELS"] = before
    for window in tokens:
        sequence = engine.new()
        yield engine.forward([Entry(sequence, window.tolist(), logits="all")])[0].logits
        engine.remove(sequence)
    engine.close()


def log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Of float32 rows of logits, in float64."""
    exact = logits.astype(np.float64)
    exact -= exact.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    return exact


def divergence(true: Iterator[Logits] | Any, other: Iterator[Logits]) -> Divergence:
    """Mean over all rows of sum p log(p / q), p the true probabilities and q the other ones."""
    values, same, rows = [], 0, 0
    for p_window, q_window in zip(true, other, strict=True):
        for at in range(0, len(p_window), ROWS):
            p, q = log_probabilities(p_window[at : at + ROWS]), log_probabilities(q_window[at : at + ROWS])
            values.append((np.exp(p) * (p - q)).sum(1))
            same += int((p.argmax(1) == q.argmax(1)).sum())
            rows += len(p)
    each = np.concatenate(values)
    return Divergence(float(each.mean()), float(each.std(ddof=1) / np.sqrt(rows)), same / rows, rows)
