"""Random weights of any type, as GGUF stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from benchmarks.models.quantizer import Quantizer
from benchmarks.models.random_llama import random_blocks


def random_weights(kind: str, rows: int, columns: int) -> Any:
    """uint8 (rows, bytes of a row)."""
    random = np.random.default_rng(rows + columns)
    if kind in ("Q4_K", "Q6_K"):  # quantizing large matrices into these takes long
        return random_blocks(GGMLQuantizationType[kind], rows, columns, random)
    values = random.standard_normal((rows, columns), np.float32) * np.float32(0.02)
    if kind in ("F32", "F16"):
        return np.ascontiguousarray(values.astype(np.float32 if kind == "F32" else np.float16)).view(np.uint8)
    if kind == "BF16":
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    return Quantizer()(values, GGMLQuantizationType[kind])
