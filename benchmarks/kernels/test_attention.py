"""Attention over pages, against ``ggml_flash_attn_ext`` over cells in a row; one thread."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kernels.attention_work import HEAD_SIZE, HEADS, KV_HEADS, WORK, Work
from benchmarks.kernels.plain_attention import PlainAttention


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.title)
def test_attention(compared: Any, work: Work) -> None:
    plain = PlainAttention(work.sequences, work.rows, work.before, HEADS, KV_HEADS, HEAD_SIZE)
    compared(work.run, plain.run, 3)
    plain.close()
