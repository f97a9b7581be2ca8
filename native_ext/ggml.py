"""The engine ``ggml``: GGUF models of architecture ``llama`` on the CPU, through ggml and our own attention.

See ``engine.Engine`` for the contract. What holds of this engine beyond it: cells are pages of 64 positions in float16,
or int8 with a float16 scale for each position, head, and of key and value (``kv_type``); memory for cells grows with
the pages in use, up to ``kv_bytes``; weights of types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 and F32
are packed at load for our own kernels, others stay in the mapped file and are multiplied by ggml.

The environment variable ``TOKENLOOM_KERNELS`` says which kernels: ``auto`` (the default: the fastest that this machine
has), ``portable``, ``avx2``, ``avxvnni``, ``vnni``, ``neon``, which all give the same bits, or ``ggml``, which packs
nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tokenloom.native_ext.engine import (
    EngineError,
    EngineSettings,
    EngineStats,
    Entry,
    Geometry,
    Output,
    TokenLogprobs,
)
from tokenloom.native_ext.fingerprint import fingerprint
from tokenloom.native_ext.native import core

if TYPE_CHECKING:
    from tokenloom.native_ext import _core


log = logging.getLogger(__name__)

_INT64 = 1 << 63


class GgmlEngine:
    """A loaded model. Not for two threads at once; ``forward`` releases the GIL."""

    def __init__(self, settings: EngineSettings) -> None:
        """Raises ModelError for a file that cannot be served, EngineError for settings out of range."""
        for name in ("kv_bytes", "threads", "max_batch_tokens", "max_sequences"):
            if not -_INT64 <= (value := getattr(settings, name)) < _INT64:
                raise EngineError(f"{name} is {value}; it must fit 64 bits")
        self._core: _core.Engine | None = core.Engine(
            os.fsencode(settings.model),
            kv_type=settings.kv_type,
            kv_bytes=settings.kv_bytes,
            threads=settings.threads,
            max_batch_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
        )
        self._geometry = Geometry(
            fingerprint=fingerprint(settings.model, self._core.header_bytes()), **self._core.geometry()
        )
        self._metadata: Mapping[str, Any] | None = None
        kernels, packed, others = self._core.weights()
        log.info("tokenloom: matrices for kernels %s: %s; for ggml: %s", kernels, _counted(packed), _counted(others))

    @property
    def _open(self) -> _core.Engine:
        if self._core is None:
            raise EngineError("the engine is closed")
        return self._core

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @property
    def metadata(self) -> Mapping[str, Any]:
        if self._metadata is None:
            self._metadata = MappingProxyType(self._open.metadata())
        return self._metadata

    @property
    def stats(self) -> EngineStats:
        return EngineStats(**self._open.stats())

    def new(self) -> int:
        return self._open.create()

    def remove(self, sequence: int) -> None:
        self._open.remove(sequence)

    def clone(self, sequence: int, upto: int | None = None) -> int:
        if upto is None:
            upto = self.length(sequence)
        return self._open.clone(sequence, upto)

    def rewind(self, sequence: int, to: int) -> None:
        self._open.rewind(sequence, to)

    def length(self, sequence: int) -> int:
        return self._open.length(sequence)

    def pages(self, sequence: int) -> list[int]:
        """The numbers of the pages that hold the sequence's cells, in position order."""
        return self._open.pages(sequence)

    def pages_needed(self, growth: Mapping[int, int]) -> int:
        return self._open.pages_needed(dict(growth))

    def pages_held(self, sequence: int) -> int:
        return self._open.pages_held(sequence)

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        return [
            Output(
                token=token,
                logprobs=None if logprobs is None else TokenLogprobs(chosen=logprobs[0], top=logprobs[1]),
                logits=logits,
            )
            for token, logprobs, logits in self._open.forward(batch)
        ]

    def close(self) -> None:
        self._core = None


def _counted(types: Mapping[str, int]) -> str:
    """Matrices by type, for people: ``210 q4_1, 1 q8_0``."""
    return ", ".join(f"{count} {name}" for name, count in types.items()) or "none"


def load(settings: EngineSettings) -> GgmlEngine:
    """What the entry point ``ggml`` of the group ``tokenloom.engines`` names."""
    return GgmlEngine(settings)
