"""Random weights, as GGUF stores them and as numbers."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Types that our own kernels multiply without rounding activations to int8.
WHOLE = ["F16", "BF16", "F32"]
#: All of them.
PACKED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", *WHOLE]
#: Where in a block its float16 scales are (scale, and what minimums are multiplied by).
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
#: Types whose packed scales are rounded, by 1 in 2,000 at most.
ROUNDED = {"Q4_K", "Q5_K", "Q6_K"}


def random_weights(rng: np.random.Generator, kind: str, rows: int, columns: int) -> tuple[Array, Array]:
    """(uint8 (rows, bytes), float64 (rows, columns)): every bit of the quants random, scales of either sign."""
    quantization = gguf.GGMLQuantizationType[kind]
    if kind in WHOLE:
        numbers = rng.standard_normal((rows, columns)).astype(np.float32)
        encoded = gguf.quants.quantize(numbers, quantization)
        flat = np.ascontiguousarray(encoded).view(np.uint8).reshape(rows, -1)
        return flat, gguf.quants.dequantize(encoded, quantization).astype(np.float64)
    block, size = gguf.GGML_QUANT_SIZES[quantization]
    raw = rng.integers(0, 256, (rows, columns // block, size), np.uint8)
    for at in SCALES.get(kind, (0,)):
        scales = rng.uniform(0.01, 0.02, (*raw.shape[:2], 1)) * rng.choice([-1, 1], (*raw.shape[:2], 1))
        raw[..., at : at + 2] = scales.astype(np.float16).view(np.uint8)
    flat = raw.reshape(rows, -1)
    return flat, gguf.quants.dequantize(flat, quantization).astype(np.float64)
