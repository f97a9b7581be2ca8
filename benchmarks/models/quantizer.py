"""ggml's own quantizer, from the libraries of the package ``libggml-python``, and llama.cpp's rule of types."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

Type = GGMLQuantizationType

#: What llama.cpp takes when a row is no multiple of 256 numbers, the block of the K types.
SHORT_ROWS = {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}


class Quantizer:
    """``ggml_quantize_chunk`` as a method."""

    def __init__(self) -> None:
        """Raises RuntimeError when the package is not installed."""
        spec = importlib.util.find_spec("libggml")
        folders = [Path(folder) for folder in (spec.submodule_search_locations or [] if spec else [])]
        found = [path for folder in folders for path in folder.glob("lib*/libggml-base.*") if path.suffix != ".a"]
        if not found:
            raise RuntimeError("ggml's libraries are missing: pip install libggml-python")
        self._library = ctypes.CDLL(str(found[0]))
        self._chunk = self._library.ggml_quantize_chunk
        self._chunk.restype = ctypes.c_size_t
        self._chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
            ctypes.c_void_p,
        ]  # fmt: skip

    def __call__(self, values: Any, kind: Type) -> Any:
        """float32 (rows, columns) as uint8 (rows, bytes of a row). ValueError when columns are no whole blocks."""
        block, size = GGML_QUANT_SIZES[kind]
        rows, columns = values.shape
        if columns % block:
            raise ValueError(f"{columns} columns are no multiple of {block}, the block of {kind.name}")
        source = np.ascontiguousarray(values, np.float32)
        out = np.empty((rows, columns // block * size), np.uint8)
        written = self._chunk(int(kind), source.ctypes.data, out.ctypes.data, 0, rows, columns, None)
        if written != out.nbytes:
            raise RuntimeError(f"ggml wrote {written} bytes of {kind.name} where {out.nbytes} were expected")
        return out


def q4_k_m(name: str, columns: int, layers: int, *, tied: bool) -> Type:
    """The type llama.cpp's mix Q4_K_M gives a weight matrix of a llama model, importance matrices aside.

    Q4_K, but Q6_K for the output matrix (the embeddings where it is ``tied`` to them) and, in the first and last eighth
    of the layers and in every third between, for ``attn_v`` and ``ffn_down``. Source: src/llama-quant.cpp of llama.cpp.
    """
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return Type.Q8_0 if columns % 256 else Type.Q6_K
    kind = Type.Q4_K
    if name.endswith(("attn_v.weight", "ffn_down.weight")) and gets_more_bits(int(name.split(".")[1]), layers):
        kind = Type.Q6_K
    return SHORT_ROWS[kind] if columns % 256 else kind


def gets_more_bits(layer: int, layers: int) -> bool:
    """Which layers llama.cpp's mixed types spend more on."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
