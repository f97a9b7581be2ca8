"""The engine ``ggml``: GGUF models on the CPU, through ggml and our own attention. Which: ``src/models/families.cpp``.

See ``engine.Engine`` for the contract. What holds of this engine beyond it: cells are pages of 64 positions in float16,
or int8 with a float16 scale for each position, head, and of key and value (``kv_type``); memory for cells grows with
the pages in use, up to ``kv_bytes``; weights of types Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 and F32
are packed at load for our own kernels, others stay in the mapped file and are multiplied by ggml.

The environment variable ``TOKENLOOM_KERNELS`` says which kernels: ``auto`` (the default: the fastest that this machine
has, of those whose speed was measured), ``portable``, ``avx2``, ``avxvnni``, ``vnni``, ``amx``, ``neon``, which all
give the same bits, or ``ggml``, which packs nothing. ``amx`` is AMX int8 for 32 tokens and more; it was tried in
emulation alone, and has to be named.

``TOKENLOOM_PACKED_CACHE`` says where packed weights are kept, so that the next load maps them instead of packing again
and workers on one machine share their pages: ``off`` (the default), ``beside`` for the model's own folder, or a folder.
The file's name holds the model's, and the beginning of its fingerprint. It may be deleted at any time. Of several
processes that load without it, one packs while the others wait for its file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tqdm import tqdm  # type: ignore[import-untyped]

from tokenloom.native_ext.engine import (
    EngineError,
    EngineSettings,
    EngineStats,
    Entry,
    Geometry,
    ModelError,
    Output,
    TokenLogprobs,
)
from tokenloom.native_ext.fingerprint import fingerprint
from tokenloom.native_ext.native import core

if TYPE_CHECKING:
    from tokenloom.native_ext import _core


log = logging.getLogger(__name__)

_INT64 = 1 << 63
#: Seconds of packing after which its progress is shown.
SHOWN_AFTER = 0.5


def cache_folder(model: Path) -> Path | None:
    """Where TOKENLOOM_PACKED_CACHE says that packed weights of the model are kept; None for nowhere."""
    where = os.environ.get("TOKENLOOM_PACKED_CACHE", "")
    if where in ("", "off"):
        return None
    return Path(model).absolute().parent if where == "beside" else Path(where)


def cache_name(model: Path, fingerprint: str) -> str:
    """Of the file with its packed weights."""
    return f"{Path(model).name}.{fingerprint[:16]}.packed"


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Takes bytes done and in all, and shows them when it lasts. None where nobody watches: stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with tqdm(
        desc=title, unit="B", unit_scale=True, unit_divisor=1024, delay=SHOWN_AFTER, mininterval=0, leave=False
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


class GgmlEngine:
    """A loaded model. Not for two threads at once; ``forward`` releases the GIL.

    It is of the process that loaded it. In one forked from that, ``close`` returns at once, and whatever needs the
    model raises EngineError.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Raises ModelError for a file that cannot be served, EngineError for settings out of range."""
        for name in ("kv_bytes", "threads", "max_batch_tokens", "max_sequences"):
            if not -_INT64 <= (value := getattr(settings, name)) < _INT64:
                raise EngineError(f"{name} is {value}; it must fit 64 bits")
        model = os.fsencode(settings.model)
        folder = cache_folder(settings.model)
        before = "" if folder is None else fingerprint(settings.model, core.header_bytes(model))
        cache = None if folder is None else folder / cache_name(settings.model, before)
        with progress_bar(f"packing {Path(settings.model).name}") as progress:
            self._core: _core.Engine | None = core.Engine(
                model,
                kv_type=settings.kv_type,
                kv_bytes=settings.kv_bytes,
                threads=settings.threads,
                max_batch_tokens=settings.max_batch_tokens,
                max_sequences=settings.max_sequences,
                packed_cache="" if cache is None else os.fsencode(cache),
                fingerprint=before,
                progress=progress,
            )
        self._process = os.getpid()
        after = fingerprint(settings.model, self._core.header_bytes())
        if cache is not None:
            self._check(settings.model, cache, before == after)
        self._geometry = Geometry(fingerprint=after, **self._core.geometry())
        self._metadata: Mapping[str, Any] | None = None
        kernels, packed, others = self._core.weights()
        log.info("tokenloom: matrices for kernels %s: %s; for ggml: %s", kernels, _counted(packed), _counted(others))

    def _check(self, model: Path, cache: Path, same: bool) -> None:
        """Log what became of the packed weights' file; refuse them if the model has changed since it was named."""
        _, failed, note = self._open.packed_cache()
        if not same:
            self._core = None
            cache.unlink(missing_ok=True)
            raise ModelError(f"{model}: the file was replaced while it was loaded")
        if note:
            log.log(logging.WARNING if failed else logging.INFO, "tokenloom: %s", note)

    def __reduce__(self) -> tuple[Any, ...]:
        raise EngineError(f"the engine was loaded by process {self._process} and stays there: load one in the other")

    @property
    def _open(self) -> _core.Engine:
        if self._core is None:
            raise EngineError("the engine is closed")
        if os.getpid() != self._process:
            raise EngineError(
                f"the engine was loaded by process {self._process} and cannot be used in process {os.getpid()}, which"
                " was forked from it: threads do not survive a fork; load an engine there"
            )
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
