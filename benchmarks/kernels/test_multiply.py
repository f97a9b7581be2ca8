"""Multiplication by packed weights, for every type, against ``ggml_mul_mat`` in a plain buffer; one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.kernels.weights import random_weights
from tokenloom.native_ext.native import core

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
ROWS, COLUMNS = 1536, 1536


@pytest.mark.parametrize("tokens", [1, 8, 32])
@pytest.mark.parametrize("kind", TYPES)
def test_multiply(compared: Any, kind: str, tokens: int) -> None:
    data = random_weights(kind, ROWS, COLUMNS)
    packed = core.PackedMatrix(kind, data)
    x = np.random.default_rng(tokens).standard_normal((tokens, COLUMNS), np.float32)
    compared(
        lambda repeat: core.multiply([packed], x, repeat=repeat)[1],
        lambda repeat: core.ggml_multiply(kind, data, x, repeat=max(1, repeat // 4))[1],
        max(2, 64 // tokens),
    )
