"""Rotary positions of every kind: by how much a layer's queries and keys are turned."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from families.rules import Keys, Rules

Array = npt.NDArray[np.float64]


def base_of(rules: Rules, keys: Keys, near: bool, size: int) -> float:
    base = float(keys.get("rope.freq_base", 10000.0))
    if rules.names == "hunyuan-dense" and (alpha := keys.get("rope.scaling.alpha")):
        base *= alpha ** (size / (size - 2))
    if near and rules.local_base is not None:
        base = keys.get("rope.freq_base_swa", rules.local_base)
    return base


def angles(
    rules: Rules, keys: Keys, factors: Array | float, near: bool, count: int, size: int, original: int
) -> tuple[Array, float]:
    """Of positions (count, turned / 2), and what sines and cosines are multiplied by.

    ``near``: a layer with a window. ``factors`` divide the frequencies. ``original``: the context YaRN came from.
    """
    turned = keys.get("rope.dimension_count", size)
    if near:
        turned = keys.get("rope.dimension_count_swa", turned)
    base = base_of(rules, keys, near, size)
    pair = np.arange(turned // 2)
    frequency = base ** (-2 * pair / turned) / factors
    kind, factor = keys.get("rope.scaling.type", "linear"), keys.get("rope.scaling.factor") or 1.0
    magnitude = keys.get("rope.scaling.attn_factor", 1.0)
    if near and not rules.local_scaling:
        kind, factor, magnitude = "linear", 1.0, 1.0
    scaled = frequency / factor
    if kind == "yarn":
        fast, slow = 32.0, 1.0
        if rules.yarn_keys:
            fast = keys.get("rope.scaling.yarn_beta_fast", fast)
            slow = keys.get("rope.scaling.yarn_beta_slow", slow)

        def place(turns: float) -> float:
            return float(turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)))

        low, high = max(0, math.floor(place(fast))), min(turned - 1, math.ceil(place(slow)))
        keep = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
        scaled = scaled * (1 - keep) + frequency * keep
        multiplier = keys.get("rope.scaling.yarn_log_multiplier", 0.0)
        magnitude *= (1 + 0.1 * math.log(factor)) / (1 + 0.1 * multiplier * math.log(factor))
    return np.arange(count)[:, None] * scaled[None, :], magnitude


def turn(x: Array, by: Array, magnitude: float, neox: bool) -> Array:
    """Heads (tokens, heads, size), each pair by its angle (tokens, pairs); what lies behind the pairs stays."""
    cos, sin = np.cos(by)[:, None] * magnitude, np.sin(by)[:, None] * magnitude
    half, out = by.shape[-1], np.array(x)
    first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    if neox:
        first, second = slice(0, half), slice(half, 2 * half)
    one, other = x[..., first], x[..., second]
    out[..., first], out[..., second] = one * cos - other * sin, one * sin + other * cos
    return out
