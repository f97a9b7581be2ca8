"""The engine ``fake``: no model, no native code, milliseconds to load; for unit tests of whatever drives an engine.

Each cell holds a digest of the whole history that ends in it, computed from the digest in the cell before, and each row
of logits is made from the last one. So any token lost, doubled, changed or put into the wrong page changes everything
that follows, and equal output means equal history. Pages, sharing, copies and refusals are those of the engine ``ggml``
(``fake_cells``), sampling is the real one's rules (``reference_sampler``).

Likely tokens are the 32 of ``fake_vocabulary.SPOKEN``, with logits in 0..8; all others have -60, so that they come only
when a logit bias asks for them.

Settings beyond ``EngineSettings`` are ``FakeSettings``; ``load`` reads them from the environment, each as
``TOKENLOOM_FAKE_`` and the field's name in capitals. ``EngineSettings.model`` and ``threads`` are ignored.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from tokenloom.native_ext import reference_sampler
from tokenloom.native_ext.engine import (
    BatchError,
    EngineError,
    EngineSettings,
    EngineStats,
    Entry,
    Geometry,
    Output,
    TokenLogprobs,
)
from tokenloom.native_ext.fake_cells import FakeCells
from tokenloom.native_ext.fake_vocabulary import END, SPOKEN, TOKENS, metadata

ENVIRONMENT_PREFIX = "TOKENLOOM_FAKE_"
PAGE_SIZE = 64
#: One layer of one KV head of 64 float16 dimensions, keys and values: 256 bytes a position.
PAGE_BYTES = PAGE_SIZE * 64 * 2 * 2
_UNSPOKEN = -60.0
_EMPTY = b"\0" * 16


@dataclass(frozen=True)
class FakeSettings:
    """How this engine misbehaves. -1 stands for never.

    - ``context``: most tokens of a sequence.
    - ``seconds``, ``token_seconds``: how long a forward takes, plus how long for each of its tokens.
    - ``fail_token``: a batch holding this token raises EngineError, after its work and changing nothing.
    - ``kill_token``: a batch holding this token kills the process with SIGKILL.
    - ``end_one_in``: every n-th history, picked by its digest, has the end token as by far the likeliest; 0 for none.
    """

    context: int = 4096
    seconds: float = 0.0
    token_seconds: float = 0.0
    fail_token: int = -1
    kill_token: int = -1
    end_one_in: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> FakeSettings:
        """Raises EngineError naming a variable that is no number."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = ENVIRONMENT_PREFIX + field.name.upper()
            if name in environment:
                kind = float if isinstance(field.default, float) else int
                try:
                    values[field.name] = kind(environment[name])
                except ValueError:
                    raise EngineError(f"{name} is {environment[name]!r}; it must be of type {kind.__name__}") from None
        return cls(**values)


class FakeEngine:
    """See the module's docstring, and ``engine.Engine`` for the contract."""

    def __init__(self, settings: EngineSettings, fake: FakeSettings | None = None) -> None:
        """Raises EngineError for a byte budget below one page, and for sizes below 1."""
        self._fake = fake or FakeSettings()
        for name, value, least in (
            ("kv_bytes", settings.kv_bytes, PAGE_BYTES),
            ("max_batch_tokens", settings.max_batch_tokens, 1),
            ("max_sequences", settings.max_sequences, 1),
            ("context", self._fake.context, 1),
        ):
            if value < least:
                raise EngineError(f"{name} is {value}; it must be at least {least}")
        self._geometry = Geometry(
            architecture="fake",
            name="fake",
            fingerprint=_digest(f"fake 1 {self._fake.context} {self._fake.end_one_in}".encode()).hex(),
            layers=1,
            heads=1,
            kv_heads=1,
            head_size=64,
            embedding=64,
            vocabulary=len(TOKENS),
            context=self._fake.context,
            max_sequences=settings.max_sequences,
            max_batch_tokens=settings.max_batch_tokens,
            page_size=PAGE_SIZE,
            page_bytes=PAGE_BYTES,
            max_pages=settings.kv_bytes // PAGE_BYTES,
            threads=1,
        )
        self._metadata = MappingProxyType(metadata(self._fake.context))
        self._held: FakeCells | None = FakeCells(
            self._geometry.max_pages, settings.max_sequences, self._fake.context, PAGE_SIZE
        )
        self._stats = EngineStats()

    @property
    def _cells(self) -> FakeCells:
        if self._held is None:
            raise EngineError("the engine is closed")
        return self._held

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    @property
    def stats(self) -> EngineStats:
        cells = self._cells
        return EngineStats(
            forwards=self._stats.forwards,
            tokens=self._stats.tokens,
            pages_used=cells.pages_used,
            pages_free=cells.pages_free,
            sequences=cells.sequences,
            seconds=self._stats.seconds,
        )

    def new(self) -> int:
        return self._cells.create()

    def remove(self, sequence: int) -> None:
        self._cells.remove(sequence)

    def clone(self, sequence: int, upto: int | None = None) -> int:
        return self._cells.clone(sequence, upto)

    def rewind(self, sequence: int, to: int) -> None:
        self._cells.rewind(sequence, to)

    def length(self, sequence: int) -> int:
        return len(self._cells.at(sequence).tokens)

    def pages(self, sequence: int) -> list[int]:
        """The numbers of the pages that hold the sequence's cells, in position order."""
        return list(self._cells.at(sequence).pages)

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        return self._cells.pages_needed(growth)

    def pages_held(self, sequence: int) -> int:
        return self._cells.pages_held(sequence)

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        started = time.perf_counter()
        self._check(batch)
        lengths: dict[int, int] = {}
        for entry in batch:
            lengths.setdefault(entry.sequence, self.length(entry.sequence))
        undo = self._cells.append([(entry.sequence, entry.tokens) for entry in batch])
        try:
            outputs = []
            for entry in batch:
                outputs.append(self._run(entry, lengths[entry.sequence]))
                lengths[entry.sequence] += len(entry.tokens)
            self._misbehave(batch)
        except BaseException:
            undo.roll_back()
            raise
        self._stats.forwards += 1
        self._stats.tokens += sum(len(entry.tokens) for entry in batch)
        self._stats.seconds += time.perf_counter() - started
        return outputs

    def close(self) -> None:
        self._held = None

    def _check(self, batch: Sequence[Entry]) -> None:
        total = sum(len(entry.tokens) for entry in batch)
        if total > self._geometry.max_batch_tokens:
            raise BatchError(f"the batch has {total} tokens; the limit is {self._geometry.max_batch_tokens}")
        for entry in batch:
            self._cells.at(entry.sequence)
            tokens: Sequence[object] = entry.tokens  # the annotation is a promise of the caller's
            for token in tokens:
                if not isinstance(token, int) or not 0 <= token < len(TOKENS):
                    raise BatchError(f"token is {token!r}; it must be an integer within 0 and {len(TOKENS) - 1}")
            if entry.sample is not None:
                reference_sampler.validate(entry.sample, len(TOKENS))
            if entry.logits not in ("none", "last", "all"):
                raise BatchError(f"logits is {entry.logits!r}; it must be 'none', 'last' or 'all'")

    def _run(self, entry: Entry, length: int) -> Output:
        """Fill the entry's cells, which begin at position ``length``, and sample from the last."""
        cells = self._cells
        state = cells.cell(entry.sequence, length - 1) if length else _EMPTY
        states = []
        for offset, appended in enumerate(entry.tokens):
            state = _digest(state + appended.to_bytes(4, "little"))
            cells.write(entry.sequence, length + offset, state)
            states.append(state)
        token: int | None = None
        logprobs: TokenLogprobs | None = None
        logits: Any = None
        if entry.sample is not None:
            row = self._row(state)
            end = length + len(entry.tokens)
            token = reference_sampler.sample(row, cells.at(entry.sequence).tokens[:end], end, entry.sample)
            if entry.sample.logprobs is not None:
                logprobs = reference_sampler.logprobs(row, token, entry.sample.logprobs)
        if entry.logits != "none":
            import numpy as np  # only this needs it

            wanted = states if entry.logits == "all" else states[-1:]
            logits = np.array([self._row(one) for one in wanted], dtype=np.float32)
        return Output(token=token, logprobs=logprobs, logits=logits)

    def _row(self, state: bytes) -> list[float]:
        """Logits from a digest: 16 bits a spoken token, as multiples of 2**-13, which float32 holds exactly."""
        row = [_UNSPOKEN] * len(TOKENS)
        noise = hashlib.blake2b(state, digest_size=2 * len(SPOKEN)).digest()
        for index, token in enumerate(SPOKEN):
            row[token] = int.from_bytes(noise[2 * index : 2 * index + 2], "little") / 2**13
        if self._fake.end_one_in > 0 and int.from_bytes(state, "little") % self._fake.end_one_in == 0:
            row[END] = 60.0
        return row

    def _misbehave(self, batch: Sequence[Entry]) -> None:
        count = sum(len(entry.tokens) for entry in batch)
        delay = self._fake.seconds + count * self._fake.token_seconds
        if delay > 0:
            time.sleep(delay)
        for entry in batch:
            if self._fake.kill_token in entry.tokens:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fake.fail_token in entry.tokens:
                raise EngineError(f"told to fail on token {self._fake.fail_token}")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def load(settings: EngineSettings) -> FakeEngine:
    """What the entry point ``fake`` of the group ``tokenloom.engines`` names."""
    return FakeEngine(settings, FakeSettings.from_environment())
