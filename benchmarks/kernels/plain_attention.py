"""ggml's own attention op, ``ggml_flash_attn_ext``, on one thread, from the libraries that our engine stands on."""

from __future__ import annotations

import ctypes
import importlib.util
import statistics
import time
from ctypes import c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.attention_work import HEAD_SIZE, HEADS, KV_HEADS, Work

F32, F16 = 0, 1


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_4d": (c_void_p, [c_void_p, c_int, c_int64, c_int64, c_int64, c_int64]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_flash_attn_ext": (c_void_p, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float, c_float]),
    "ggml_graph_compute_with_ctx": (c_int, [c_void_p, c_void_p, c_int]),
    "ggml_cpu_init": (None, []),
}


class PlainAttention:
    """Attention of ``rows`` new tokens behind ``before`` others, for each of ``sequences``; float16 cells in a row."""

    def __init__(self, sequences: int, rows: int, before: int, heads: int, kv_heads: int, head_size: int) -> None:
        """Raises RuntimeError when ggml's libraries are not installed."""
        found = library_paths()
        self._base, self._cpu = (ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in found)
        cells = before + rows
        size = 4 * sequences * (2 * rows * heads + cells * kv_heads) * head_size + 2 * rows * cells + (16 << 20)
        self._context = self._call("ggml_init", InitParams(size, None, False))
        query = self._tensor(F32, head_size, rows, heads, sequences)
        keys = self._tensor(F16, head_size, cells, kv_heads, sequences)
        values = self._tensor(F16, head_size, cells, kv_heads, sequences)
        mask = self._mask(rows, before) if rows > 1 else None
        scale = head_size**-0.5
        result = self._call("ggml_flash_attn_ext", self._context, query, keys, values, mask, scale, 0.0, 0.0)
        self._graph = self._call("ggml_new_graph", self._context)
        self._call("ggml_build_forward_expand", self._graph, result)
        self._call("ggml_cpu_init")

    def run(self, repeat: int) -> list[float]:
        """CPU seconds of each repetition."""
        seconds = []
        for _ in range(repeat):
            began = time.thread_time()
            code = self._call("ggml_graph_compute_with_ctx", self._context, self._graph, 1)
            seconds.append(time.thread_time() - began)
            if code != 0:
                raise RuntimeError(f"ggml_graph_compute_with_ctx returned {code}")
        return seconds

    def close(self) -> None:
        """Free it."""
        self._call("ggml_free", self._context)

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._base, name, None) or getattr(self._cpu, name)
        function.restype, function.argtypes = FUNCTIONS[name]
        return function(*arguments)

    def _tensor(self, kind: int, *sizes: int) -> Any:
        tensor = self._call("ggml_new_tensor_4d", self._context, kind, *sizes)
        values = np.random.default_rng(len(sizes)).standard_normal(int(np.prod(sizes)), np.float32)
        self._fill(tensor, values.astype(np.float16 if kind == F16 else np.float32))
        return tensor

    def _mask(self, rows: int, before: int) -> Any:
        cells = before + rows
        mask = self._call("ggml_new_tensor_4d", self._context, F16, cells, rows, 1, 1)
        hidden = np.arange(cells)[None, :] > before + np.arange(rows)[:, None]
        self._fill(mask, np.where(hidden, -np.inf, 0).astype(np.float16))
        return mask

    def _fill(self, tensor: Any, values: Any) -> None:
        ctypes.memmove(self._call("ggml_get_data", tensor), values.ctypes.data, values.nbytes)


def compare_with(work: Work, repeat: int) -> float:
    """Median CPU seconds of ggml's op for the same work, over cells in a row that no sequences share."""
    plain = PlainAttention(work.sequences, work.rows, work.before, HEADS, KV_HEADS, HEAD_SIZE)
    try:
        return statistics.median(plain.run(repeat))
    finally:
        plain.close()


def library_paths() -> tuple[Path, Path]:
    """Of ggml's base and CPU libraries. RuntimeError when the package is not installed."""
    spec = importlib.util.find_spec("libggml")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        for base in Path(folder).glob("lib*/libggml-base.*"):
            cpu = base.with_name(base.name.replace("base", "cpu"))
            if base.suffix in (".so", ".dylib") and cpu.exists():
                return base, cpu
    raise RuntimeError("ggml's libraries are missing: pip install libggml-python")
