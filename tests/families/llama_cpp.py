"""llama.cpp on one tiny file, in plain float32: no flash attention, and cells as said."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from benchmarks.sides import llama_library
from benchmarks.sides.llama_context import LlamaContext

Row = npt.NDArray[np.float32]

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
ERROR = 4


def _only_errors(level: int, text: bytes, _: Any) -> None:
    if level == ERROR:
        print(text.decode(errors="replace"), end="", flush=True)


_log = _LOG(_only_errors)


def library() -> Any:
    """Silent but for errors. FileNotFoundError when ``make bench-llama`` was not run."""
    loaded = llama_library.load("native")
    loaded.llama_log_set(_log, None)
    return loaded


class Model:
    """One sequence of one loaded file."""

    def __init__(self, library: Any, path: Path, context: int, cell_type: Literal["f32", "f16"]) -> None:
        """Raises RuntimeError when llama.cpp does not load it; where it asserts, the process ends."""
        params = library.llama_model_default_params()
        params.use_extra_bufts = False
        self._library = library
        self._model = library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._context = LlamaContext(
            library, self._model, sequences=1, length=context, cells=context, threads=1, unified=False, flash=False,
            cell_type=cell_type,
        )  # fmt: skip

    def rows(self, tokens: Sequence[int], lengths: Sequence[int]) -> Row:
        """Logits (lengths, vocabulary) of the last token of each beginning of ``tokens``, in one decode."""
        wanted = [(0, i, token, i + 1 in lengths) for i, token in enumerate(tokens)]
        self._context.clear()
        return np.array(self._context.logits(wanted))

    def following(self, length: int, row: Row) -> Iterator[tuple[int, Row]]:
        """Greedy tokens behind ``length`` ones whose last logits are ``row``, each with the row it comes from."""
        while True:
            token = int(row.argmax())
            yield token, row
            row = np.array(self._context.logits([(0, length, token, True)])[0])
            length += 1

    def close(self) -> None:
        self._context.close()
        self._library.llama_model_free(self._model)


@contextmanager
def loaded(library: Any, path: Path, context: int, cell_type: Literal["f32", "f16"]) -> Iterator[Model]:
    model = Model(library, path, context, cell_type)
    try:
        yield model
    finally:
        model.close()
