"""Our rotary embedding is ggml's, more exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native import reference
from native.tiny_llama import TinyLlama
from tokenloom.native_ext.native import core

POSITIONS = [0, 1, 2, 63, 64, 1000, 4095, 8191, 50_000, 131_071]
FACTORS = tuple(np.linspace(1, 8, 16).astype(np.float32).tolist())
VARIANTS: dict[str, tuple[TinyLlama, dict[str, Any]]] = {
    "plain": (TinyLlama(head_size=32), {}),
    "another base": (TinyLlama(head_size=32, freq_base=500000.0), {"freq_base": 500000.0}),
    "half a head": (TinyLlama(head_size=32, rope_dimensions=16), {}),
    "ten dimensions of 32": (TinyLlama(head_size=32, rope_dimensions=10), {}),
    "head size 6": (TinyLlama(head_size=6), {}),
    "linear": (TinyLlama(head_size=32, scaling="linear", scaling_factor=4.0), {"freq_scale": 0.25}),
    "yarn": (
        TinyLlama(head_size=32, scaling="yarn", scaling_factor=8.0, original_context=512),
        {"freq_scale": 0.125, "ext_factor": 1.0, "original_context": 512},
    ),
    "yarn, attention factor": (
        TinyLlama(head_size=32, scaling="yarn", scaling_factor=4.0, original_context=4096, attn_factor=1.3),
        {"freq_scale": 0.25, "ext_factor": 1.0, "original_context": 4096, "attn_factor": 1.3},
    ),
    "factors": (TinyLlama(head_size=32, rope_factors=FACTORS), {"factors": FACTORS}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_heads_are_turned_as_the_papers_say_and_as_ggml_does(name: str) -> None:
    model, arguments = VARIANTS[name]
    x = np.random.default_rng(1).standard_normal((len(POSITIONS), 3, model.head_size)).astype(np.float32)
    ours, ggmls = core.rope(x, POSITIONS, model.rotated, **arguments)
    angles, magnitude = reference.rotary_angles(model, np.array(POSITIONS))
    cos, sin = np.cos(angles)[:, None, :] * magnitude, np.sin(angles)[:, None, :] * magnitude
    expected = x.astype(np.float64)
    even, odd = x[..., 0 : model.rotated : 2], x[..., 1 : model.rotated : 2]
    expected[..., 0 : model.rotated : 2] = even * cos - odd * sin
    expected[..., 1 : model.rotated : 2] = even * sin + odd * cos
    assert np.abs(ours - expected).max() < 1e-6
    # ggml's angles lose a few units in the last place of the position times the frequency.
    tolerance = 1e-6 + 3e-6 * np.array(POSITIONS)[:, None, None]
    assert (np.abs(ours - ggmls) < tolerance).all()
    if name != "plain":
        plain, _ = core.rope(x, POSITIONS, model.head_size)
        assert model.head_size != 32 or np.abs(plain - ours).max() > 0.1


def test_position_0_turns_nothing_and_far_angles_stay_exact() -> None:
    x = np.ones((3, 1, 2), np.float32)
    ours, _ = core.rope(x, [0, 11, 1_000_003], 2)
    assert ours[0, 0].tolist() == [1, 1]
    for i, angle in ((1, 11.0), (2, 1_000_003.0)):
        assert ours[i, 0] == pytest.approx([np.cos(angle) - np.sin(angle), np.sin(angle) + np.cos(angle)], abs=2e-7)


@pytest.mark.parametrize(("head_size", "turned"), [(32, 32), (40, 40), (80, 20), (6, 4)])
def test_halves_turn_as_neighbours_do_and_as_ggml_has_it(head_size: int, turned: int) -> None:
    """NeoX's order: dimension i and the one half of those turned further on are a pair."""
    x = np.random.default_rng(2).standard_normal((len(POSITIONS), 3, head_size)).astype(np.float32)
    halves, ggmls = core.rope(x, POSITIONS, turned, halves=True)
    order = [d for pair in zip(range(turned // 2), range(turned // 2, turned), strict=True) for d in pair]
    order += range(turned, head_size)
    neighbours, _ = core.rope(np.ascontiguousarray(x[..., order]), POSITIONS, turned)
    assert np.array_equal(halves[..., order].view(np.uint32), neighbours.view(np.uint32))
    assert (np.abs(halves - ggmls) < 1e-6 + 3e-6 * np.array(POSITIONS)[:, None, None]).all()
    assert np.abs(halves - x).max() > 0.5
