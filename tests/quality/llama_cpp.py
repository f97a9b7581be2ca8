"""llama.cpp's logits of every token, from the library within the package ``xllamacpp``.

Its server names probabilities only of tokens that it generates, so the C interface (llama.h) is called, which the
package's module exports. ``logits`` runs this file in a process of its own: llama.cpp brings a ggml under the same
library names as ours. llama.cpp runs with its defaults on a CPU (flash attention "auto", batches of 512, cells in
float16) except that weights are not repacked ("extra buffer types" off): that path ends with SIGILL on some machines.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION_NOTE = "weights not repacked, otherwise its defaults"
_F32, _F16 = 0, 1  # of ggml_type


def logits(
    model: Path, tokens: npt.NDArray[np.int32], out: Path, *, threads: int = 1, exact_cells: bool = False
) -> npt.NDArray[np.float32]:
    """Logits (windows, tokens, vocabulary), mapped from the file ``out``, of windows (windows, tokens) each alone.

    ``exact_cells`` keeps keys and values in float32, from projection to attention. RuntimeError, with what llama.cpp
    printed, when it fails.
    """
    asked = out.with_suffix(".tokens.npy")
    np.save(asked, tokens)
    command = [sys.executable, __file__, str(model), str(asked), str(out), str(threads), str(int(exact_cells))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    asked.unlink()
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp failed on {model}: {done.stderr[-2000:]}")
    mapped: npt.NDArray[np.float32] = np.load(out, mmap_mode="r")
    return mapped


# -- the child: llama.h by ctypes -------------------------------------------------------------------------------------


class _Params(ctypes.Structure):
    """llama_model_params or llama_context_params: larger than either, read and written by offset."""

    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]


class _Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def _library() -> ctypes.CDLL:
    import importlib

    library = ctypes.CDLL(str(importlib.import_module("xllamacpp.xllamacpp").__file__))
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("llama_model_default_params", _Params, []),
        ("llama_context_default_params", _Params, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _Params]),
        ("llama_init_from_model", pointer, [pointer, _Params]),
        ("llama_set_n_threads", None, [pointer, integer, integer]),
        ("llama_get_memory", pointer, [pointer]),
        ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
        ("llama_batch_init", _Batch, [integer, integer, integer]),
        ("llama_decode", integer, [pointer, _Batch]),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]),
        ("llama_model_get_vocab", pointer, [pointer]),
        ("llama_vocab_n_tokens", integer, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _found(raw: bytes, pattern: bytes, first: int, step: int, what: str) -> int:
    """Where a default value stands among the parameters. The structures have no size or version in them."""
    for at in range(first, 256, step):
        if raw[at : at + len(pattern)] == pattern:
            return at
    raise RuntimeError(f"this xllamacpp's llama.h has moved: {what} is not where it is looked for")


def _model_params(library: ctypes.CDLL) -> _Params:
    """The defaults, without repacking: the booleans are vocab_only, check_tensors, use_extra_bufts, no_host."""
    params = library.llama_model_default_params()
    flags = _found(bytes(params.bytes), b"\0\0\1\0", 64, 8, "use_extra_bufts")
    params.bytes[flags + 2] = 0
    return params  # type: ignore[no-any-return]


def _context_params(library: ctypes.CDLL, exact_cells: bool) -> _Params:
    """The defaults. ``exact_cells`` makes type_k and type_v, the first pair of ones behind YaRN's -1.0, float32, and
    flash_attn_type, the last of four enumerations that are -1, "disabled": flash attention would round them again.
    """
    params = library.llama_context_default_params()
    raw = bytes(params.bytes)
    head = np.array([512, 2048, 512, 1], np.uint32)  # n_ctx, n_batch, n_ubatch, n_seq_max
    _found(raw[:16] + b"\0" * 240, head.tobytes(), 0, 256, "n_ctx")
    yarn = _found(raw, np.full(4, -1, np.float32).tobytes(), 16, 4, "YaRN's factors")
    types = _found(raw, np.full(2, _F16, np.int32).tobytes(), yarn + 16, 4, "type_k")
    flash = _found(raw, b"\xff" * 16, 16, 4, "flash_attn_type") + 12
    if exact_cells:
        params.bytes[types] = params.bytes[types + 4] = _F32
        params.bytes[flash : flash + 4] = bytes(4)
    return params  # type: ignore[no-any-return]


def _main(model_path: str, tokens_path: str, out_path: str, threads: str, exact_cells: str) -> None:
    library = _library()
    library.llama_backend_init()
    model: Any = library.llama_model_load_from_file(model_path.encode(), _model_params(library))
    context = library.llama_init_from_model(model, _context_params(library, exact_cells == "1"))
    if not model or not context:
        raise RuntimeError(f"{model_path} cannot be loaded")
    library.llama_set_n_threads(context, int(threads), int(threads))
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    windows = np.load(tokens_path)
    count, size = windows.shape
    out = np.lib.format.open_memmap(out_path, "w+", np.float32, (count, size, vocabulary))
    batch = library.llama_batch_init(size, 0, 1)
    batch.n_tokens = size
    for i in range(size):
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i, 1, 0, 1
    for number, window in enumerate(windows):
        for i, token in enumerate(window):
            batch.token[i] = int(token)
        library.llama_memory_clear(library.llama_get_memory(context), True)
        if (code := library.llama_decode(context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        out[number] = np.ctypeslib.as_array(library.llama_get_logits(context), (size, vocabulary))
    out.flush()
    sys.stderr.flush()
    os._exit(0)  # its threads may outlive a plain exit


if __name__ == "__main__":
    _main(*sys.argv[1:])
