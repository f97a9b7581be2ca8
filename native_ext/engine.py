"""The engine seam: all the worker needs of whatever runs the model.

The contract, in prose:

- An engine holds *sequences*, small integers, each a list of token ids whose keys and values are in cells. Cells are a
  cache: the worker can lose every sequence at any moment and rebuild it from the session's log.
- ``forward`` is the only call that computes. It appends each entry's tokens to its sequence and samples where asked.
  It is atomic: it either does all of its batch or raises and leaves every sequence exactly as it was.
- Sampling is a pure function of (logits, the sequence's tokens, the ``Sampling`` settings with their seed, the position
  of the sampled token). The sampled token is *not* appended to the sequence; the worker sends it in the next batch.
- The logits of a row depend on its own sequence's tokens alone, bit for bit: not on the batch, the chunking, the pages,
  the number of threads, or on having been cloned.
- One thread at a time may call an engine. ``forward`` releases the GIL.
- Two entries of one batch may name the same sequence: their tokens abut, in batch order.

Engines register under the entry-point group ``tokenloom.engines``; the value is a callable taking ``EngineSettings``
and returning an ``Engine``. This module imports nothing heavy, so that a third-party engine can depend on it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

ENTRY_POINT_GROUP = "tokenloom.engines"


class EngineError(Exception):
    """Base of everything an engine raises on purpose."""


class ModelError(EngineError):
    """The model file cannot be served; the message says which file, what is wrong, and what is supported."""


class BatchError(EngineError, ValueError):
    """An entry is malformed: unknown sequence, no tokens, token outside the vocabulary, bad sampling settings."""


class ContextFull(BatchError):
    """An entry would grow its sequence beyond the model's context length."""


class CellsExhausted(EngineError):
    """The byte budget holds no pages for this batch. Nothing changed.

    ``needed`` and ``free`` count pages.
    """

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"the batch needs {needed} pages of cells and {free} are free")
        self.needed = needed
        self.free = free


class SequencesExhausted(EngineError):
    """``new`` or ``clone`` found every sequence number taken."""


class CloneRefused(EngineError):
    """This engine holds one sequence at a time and cannot share its cells."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to load an engine. ``threads=0`` means every core this process may use (affinity and cgroup quota).

    ``kv_type`` is how cells hold a number: ``f16``, or ``int8`` with a scale for each position, head, and of key and
    value, in little over half the bytes. An engine that has one way only takes no notice.
    """

    model: Path
    kv_bytes: int = 1 << 30
    threads: int = 0
    max_batch_tokens: int = 512
    max_sequences: int = 1024
    kv_type: Literal["f16", "int8"] = "f16"


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a loaded engine is. Lengths in tokens, sizes in bytes, ``fingerprint`` a hex digest of the model file."""

    architecture: str
    name: str
    fingerprint: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    embedding: int
    vocabulary: int
    context: int
    max_sequences: int
    max_batch_tokens: int
    page_size: int
    page_bytes: int
    max_pages: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settled sampling settings of one sampled token.

    Applied in this order, over the logits of one row: logit bias, penalties, then, unless ``temperature`` is 0 (greedy:
    highest logit, lowest id among equals), temperature, top-k, top-p, min-p, and one draw.

    - ``seed``: 64 bits unsigned. The draw is Philox4x32-10 with key = seed and counter = position of the sampled token.
    - ``top_k`` 0, ``top_p`` 1.0 and ``min_p`` 0.0 switch the filter off. ``top_p`` keeps the smallest set of most
      likely tokens whose probabilities sum to at least top_p; ``min_p`` keeps those at least min_p times as likely as
      the best.
    - ``repetition_penalty``: logits of tokens seen in the window are divided (positive) or multiplied (negative) by it;
      ``presence_penalty`` and ``frequency_penalty`` are subtracted once, and once per occurrence. The window is the
      last ``penalty_window`` tokens of the sequence, prompt included; -1 means all of it.
    - ``logit_bias``: (token, addend) pairs; the addend may be -inf.
    - ``logprobs``: None for none, n >= 0 for the chosen token's natural-log probability and the n most likely, from the
      row's logits before any of the above.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None


# Entries and outputs are made for every sequence of every forward, and freezing them would triple the time.


@dataclass(slots=True)
class Entry:
    """Tokens to append to one sequence, and what to return of them.

    ``sample`` asks for one token drawn from the last row. ``logits`` asks for raw rows: of the last token or of all.
    """

    sequence: int
    tokens: Sequence[int]
    sample: Sampling | None = None
    logits: Literal["none", "last", "all"] = "none"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probability of the chosen token, and of the most likely ones as (token, logprob), best first."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Output:
    """What one entry gave.

    ``token`` is None unless sampling was asked for; ``logits`` is a float32 array of shape (rows, vocabulary) or None.
    """

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    logits: Any = None


@dataclass(slots=True)
class EngineStats:
    """Counters since load, and pages now. ``tokens`` counts rows run by forwards."""

    forwards: int = 0
    tokens: int = 0
    pages_used: int = 0
    pages_free: int = 0
    sequences: int = 0
    seconds: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class Engine(Protocol):
    """See the module's docstring for the contract. Every method raises an ``EngineError`` subclass on misuse."""

    @property
    def geometry(self) -> Geometry: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The model file's key-value metadata under its GGUF names, arrays as lists: text handling is built from it."""

    @property
    def stats(self) -> EngineStats: ...

    def new(self) -> int:
        """An empty sequence. Raises SequencesExhausted."""

    def remove(self, sequence: int) -> None:
        """Forget a sequence; its number and the pages only it owned are free again."""

    def clone(self, sequence: int, upto: int | None = None) -> int:
        """A new sequence holding the first ``upto`` tokens (default: all), sharing cells; copies no full page.

        Raises SequencesExhausted, or CloneRefused on a single-sequence engine.
        """

    def rewind(self, sequence: int, to: int) -> None:
        """Drop all but the first ``to`` tokens, 0 <= to <= length."""

    def length(self, sequence: int) -> int:
        """How many tokens of the sequence have cells."""

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        """Pages that a batch appending ``growth[sequence]`` tokens to each sequence would take from the free ones.

        Copies of shared, partly filled pages are included.
        """

    def pages_held(self, sequence: int) -> int:
        """Pages that ``remove`` of this sequence alone would free."""

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        """Run one batch: one Output per entry, in order.

        Raises BatchError, ContextFull or CellsExhausted before any work, and leaves every sequence as it was; the same
        holds for a failure inside.
        """

    def close(self) -> None:
        """Free everything; every later call raises EngineError."""
