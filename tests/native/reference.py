"""A plain float64 forward of the llama architecture, one sequence at a time, to check the engine against.

Written from the papers: RMSNorm (Zhang and Sennrich 2019), rotary embeddings (Su et al. 2021) over pairs of neighbours,
grouped-query attention (Ainslie et al. 2023), SwiGLU (Shazeer 2020), YaRN (Peng et al. 2023) and, for Llama 3,
divisors of the rotary frequencies. Keys and values are rounded to float16, as the engine stores them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from native.tiny_llama import TinyLlama

Array = npt.NDArray[Any]


def rotary_angles(model: TinyLlama, positions: npt.NDArray[Any]) -> tuple[Array, float]:
    """Angles (positions, rotated / 2) and what their sine and cosine are multiplied by."""
    size = model.rotated
    pair = np.arange(size // 2, dtype=np.float64)
    frequency = model.freq_base ** (-2 * pair / size)
    if model.rope_factors is not None:
        frequency = frequency / np.array(model.rope_factors)
    factor = 1.0 if model.scaling_factor is None or model.scaling == "none" else model.scaling_factor
    magnitude = model.attn_factor or 1.0
    scaled = frequency / factor
    if model.scaling == "yarn":
        original = model.original_context or model.context

        def pair_turning(turns: float) -> float:
            return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(model.freq_base))

        low = max(0, math.floor(pair_turning(32)))
        high = min(size - 1, math.ceil(pair_turning(1)))
        keep = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
        scaled = scaled * (1 - keep) + frequency * keep
        magnitude *= 1 + 0.1 * math.log(factor)
    return positions[:, None] * scaled[None, :], magnitude


def rotate(model: TinyLlama, x: Array) -> Array:
    """x: (tokens, heads, head_size), token i at position i."""
    angles, magnitude = rotary_angles(model, np.arange(len(x)))
    cos, sin = np.cos(angles)[:, None, :] * magnitude, np.sin(angles)[:, None, :] * magnitude
    out: Array = x.copy()
    even, odd = x[..., 0 : model.rotated : 2], x[..., 1 : model.rotated : 2]
    out[..., 0 : model.rotated : 2] = even * cos - odd * sin
    out[..., 1 : model.rotated : 2] = even * sin + odd * cos
    return out


def logits(model: TinyLlama, tokens: list[int], weights: dict[str, npt.NDArray[Any]] | None = None) -> Array:
    """(tokens, vocabulary). ``weights``: by GGUF name, if not what the model's file holds."""
    w = {name: data.astype(np.float64) for name, data in (weights or model.stored()).items()}

    def linear(name: str, x: Array) -> Array:
        out: Array = x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)
        return out

    def norm(name: str, x: Array) -> Array:
        out: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + model.rms_epsilon) * w[name + ".weight"]
        return out

    count, group = len(tokens), model.heads // model.kv_heads
    causal = np.tril(np.ones((count, count), bool))
    x = w["token_embd.weight"][tokens]
    for i in range(model.layers):
        block = f"blk.{i}."
        h = norm(block + "attn_norm", x)
        q = rotate(model, linear(block + "attn_q", h).reshape(count, model.heads, model.head_size))
        k = rotate(model, linear(block + "attn_k", h).reshape(count, model.kv_heads, model.head_size))
        v = linear(block + "attn_v", h).reshape(count, model.kv_heads, model.head_size)
        k, v = (np.repeat(a.astype(np.float16).astype(np.float64), group, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(model.head_size)
        scores = np.where(causal, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", shares, v).reshape(count, -1)
        x = x + linear(block + "attn_output", mixed)
        h = norm(block + "ffn_norm", x)
        gate = linear(block + "ffn_gate", h)
        x = x + linear(block + "ffn_down", gate / (1 + np.exp(-gate)) * linear(block + "ffn_up", h))
    x = norm("output_norm", x)
    head = w["token_embd.weight"] if model.tied else w["output.weight"]
    out: Array = x @ head.T
    return out
