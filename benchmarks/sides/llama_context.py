"""One llama.cpp context: sequences that are filled, shared, copied and decoded."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.sides.llama_library import Batch

BATCH = 512
#: ggml's numbers of the types that cells may have.
TYPES = {"f32": 0, "f16": 1}


class LlamaContext:
    """At most ``sequences`` of ``length`` tokens each, or ``cells`` in all when the KV cells are ``unified``."""

    def __init__(
        self,
        library: Any,
        model: int,
        *,
        sequences: int,
        length: int,
        cells: int,
        threads: int,
        unified: bool,
        flash: bool,
        cell_type: Literal["f32", "f16"] = "f16",
    ) -> None:
        """Raises RuntimeError when llama.cpp makes no such context."""
        self._library = library
        self.unified, self.flash = unified, flash
        params = library.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_ctx = rounded(cells + BATCH) if unified else sequences * rounded(length)
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = unified
        params.flash_attn_type = int(flash)
        params.type_k = params.type_v = TYPES[cell_type]
        self._context = library.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {params.n_ctx} cells for {sequences} sequences")
        self._memory = library.llama_get_memory(self._context)
        self._vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self._tokens = np.zeros(BATCH, np.int32)
        self._positions = np.zeros(BATCH, np.int32)
        self._counts = np.ones(BATCH, np.int32)
        self._sequences = np.zeros(BATCH, np.int32)
        self._wanted = np.zeros(BATCH, np.int8)
        integers = ctypes.POINTER(ctypes.c_int32)
        first = self._sequences.ctypes.data
        self._pointers = (integers * BATCH)(*(ctypes.cast(first + 4 * i, integers) for i in range(BATCH)))

    def run(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """One decode of (sequence, position, token, wanted): the most likely next token of each wanted row."""
        return [int(row.argmax()) for row in self.logits(rows)]

    def logits(self, rows: Sequence[tuple[int, int, int, bool]]) -> npt.NDArray[np.float32]:
        """The same: float32 logits (wanted rows, vocabulary), overwritten by the next decode."""
        count = len(rows)
        self._sequences[:count], self._positions[:count], self._tokens[:count], self._wanted[:count] = zip(
            *rows, strict=True
        )
        integers = ctypes.POINTER(ctypes.c_int32)
        batch = Batch(
            count, self._tokens.ctypes.data_as(integers), None, self._positions.ctypes.data_as(integers),
            self._counts.ctypes.data_as(integers), self._pointers,
            self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )  # fmt: skip
        code = self._library.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode of {count} tokens returned {code}")
        outputs = int(self._wanted[:count].sum())
        logits = np.ctypeslib.as_array(
            self._library.llama_get_logits(self._context), (max(outputs, 1), self._vocabulary)
        )
        return logits[:outputs]

    def fill(self, sequence: int, start: int, tokens: Sequence[int]) -> int:
        """Append ``tokens`` from position ``start`` on; the most likely next token."""
        last = len(tokens) - 1
        made: list[int] = []
        for first in range(0, len(tokens), BATCH):
            chunk = tokens[first : first + BATCH]
            made = self.run([(sequence, start + first + i, token, first + i == last) for i, token in enumerate(chunk)])
        return made[0]

    def share(self, source: int, target: int) -> None:
        """Let ``target`` begin like ``source``: the same cells when unified, a copy otherwise."""
        self._library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Give each of ``targets`` cells of its own with what ``source`` has."""
        size = self._library.llama_state_seq_get_size(self._context, source)
        state = (ctypes.c_uint8 * size)()
        self._library.llama_state_seq_get_data(self._context, state, size, source)
        for target in targets:
            if not self._library.llama_state_seq_set_data(self._context, state, size, target):
                raise RuntimeError(f"llama.cpp has no room for a copy of sequence {source}")

    def cut(self, sequence: int, length: int) -> None:
        """Drop all but the first ``length`` tokens."""
        self._library.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def clear(self) -> None:
        """Empty every sequence."""
        self._library.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free it."""
        self._library.llama_free(self._context)


def rounded(cells: int) -> int:
    """Up to a multiple of 256, as llama.cpp does."""
    return -(-cells // 256) * 256
