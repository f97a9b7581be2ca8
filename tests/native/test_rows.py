"""The small work on rows: the same bits on every instruction set, whatever the numbers are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokenloom.native_ext.native import core

Array = npt.NDArray[Any]
KERNELS = core.row_kernels()
NAN = np.float32("nan")
INFINITY = np.float32("inf")
#: Numbers that a block may hold beside ordinary ones.
ODD_BLOCKS: dict[str, list[float]] = {
    "zeros": [0.0] * 32,
    "negative zeros": [-0.0] * 32,
    "below the smallest block": [9e-31, -9e-31] * 16,
    "at the smallest block": [float(np.float32(1e-30)), 0.0] * 16,
    "just above it": [1.5e-30, -1e-31] * 16,
    "subnormal": [1e-40, -1e-45] * 16,
    "largest finite": [3.4028235e38, -3.4028235e38, 1.0, -0.0] * 8,
    "ties": [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5] * 4,
}


def tiles(x: Array, name: str, **settings: Any) -> Array:
    out: Array = core.activation_tiles(x, name, **settings)[0]
    return out


def rows_of(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Of differing size, every other number of the first row -0.0."""
    x = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-3, 4, (rows, 1))
    x[0, ::2] = -0.0
    return x.astype(np.float32)


def block_of_tile(made: Array, tokens: int, token: int, block: int) -> tuple[Array, Array, Array]:
    """int8 [32], float32 [scale, scale * sum], int32 [four starts] of one block of a tile that is alone."""
    own = made[block * 56 * tokens : (block + 1) * 56 * tokens].reshape(14, tokens, 4)[:, token].copy()
    return (
        own[:8].reshape(-1).view(np.int8),
        own[8:10].reshape(-1).view(np.float32),
        own[10:].reshape(-1).view(np.int32),
    )


def test_the_reference_is_there() -> None:
    assert KERNELS[0] == "portable"
    assert set(KERNELS) <= {"portable", "avx2", "avx512"}


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


def gelu(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


def erf_gelu(x: Array) -> Array:
    out: Array = x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    return out


def centred(x: Array) -> Array:
    out: Array = x - x.mean(1, keepdims=True)
    return out


def rms(x: Array) -> Array:
    out: Array = np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    return out


#: p, n, beta and epsilon of an xIELU.
XIELU = (0.8, 1.3, 0.5, -1e-6)


def xielu(x: Array) -> Array:
    p, n, beta, epsilon = XIELU
    out: Array = np.where(x > 0, p * x**2, (np.expm1(np.minimum(x, epsilon)) - x) * n) + beta * x
    return out


def clamped(gate: Array, up: Array) -> Array:
    gate = np.minimum(gate, 7)
    out: Array = gate * sigmoid(1.702 * gate) * (np.clip(up, -7, 7) + 1)
    return out


#: What is made of rows before they are multiplied, in float64: of (gate, up) where there are gates.
GATED: dict[str, Callable[[Array, Array], Array]] = {
    "gated": lambda gate, up: gate * sigmoid(gate) * up,
    "gelu_gated": lambda gate, up: gelu(gate) * up,
    "erf_gated": lambda gate, up: erf_gelu(gate) * up,
    "clamped_gated": clamped,
}
MADE: dict[str, Callable[[Array, Array, Array], Array]] = {
    "": lambda x, weight, bias: x,
    "normed": lambda x, weight, bias: x / rms(x) * weight,
    "layer_normed": lambda x, weight, bias: centred(x) / rms(centred(x)) * weight + bias,
    "silu": lambda x, weight, bias: x * sigmoid(x),
    "gelu": lambda x, weight, bias: gelu(x),
    "erf_gelu": lambda x, weight, bias: erf_gelu(x),
    "relu_squared": lambda x, weight, bias: np.maximum(x, 0) ** 2,
    "xielu": lambda x, weight, bias: xielu(x),
}


def settings_of(before: str, columns: int, rng: np.random.Generator) -> dict[str, Any]:
    settings: dict[str, Any] = {"before": before, "epsilon": 1e-5}
    if before.endswith("normed"):
        settings["weight"] = rng.standard_normal(columns).tolist()
        settings["bias"] = rng.standard_normal(columns).tolist() if before == "layer_normed" else []
    elif before == "xielu":
        settings["weight"] = XIELU
    return settings


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("before", [*MADE, *GATED])
def test_what_is_made_of_rows_is_the_formula(before: str, name: str) -> None:
    rng, columns = np.random.default_rng(4), 91
    settings = settings_of(before, columns, rng)
    x = rng.standard_normal((1, columns * (2 if before in GATED else 1))).astype(np.float32) * np.float32(4)
    made = tiles(x, name, form="whole", **settings).view(np.float32)
    wide = x.astype(np.float64)
    if before in GATED:
        expected = GATED[before](wide[:, :columns], wide[:, columns:])
    else:
        expected = MADE[before](wide, np.array(settings.get("weight", 0.0)), np.array(settings.get("bias", 0.0)))
    assert np.abs(made - expected[0]).max() < 4e-7 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("before", [*MADE, *GATED])
@pytest.mark.parametrize(("form", "columns"), [("rounded", 32), ("rounded", 224), ("whole", 91), ("shortened", 7)])
def test_tiles_have_the_same_bits_everywhere_however_they_are_cut(before: str, form: str, columns: int) -> None:
    rng = np.random.default_rng(1)
    settings: dict[str, Any] = {"form": form, **settings_of(before, columns, rng)}
    for rows in (*range(1, 9), 13):
        x = rows_of(rng, rows, columns * (2 if before in GATED else 1))
        expected = tiles(x, "portable", **settings)
        for name in KERNELS:
            for parts in (1, 3):
                assert np.array_equal(tiles(x, name, parts=parts, **settings), expected), (name, rows, parts)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", ODD_BLOCKS)
def test_odd_blocks_have_the_same_bits_everywhere(kind: str, name: str) -> None:
    for rows in range(1, 7):
        for row in range(rows):
            x = rows_of(np.random.default_rng(2), rows, 96)
            x[row, 32:64] = ODD_BLOCKS[kind]
            assert np.array_equal(tiles(x, name), tiles(x, "portable"))


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_too_small_are_zero_and_others_are_not(name: str) -> None:
    for kind, zero in {
        "below the smallest block": True,
        "at the smallest block": False,
        "negative zeros": True,
    }.items():
        numbers, scales, starts = block_of_tile(tiles(np.array([ODD_BLOCKS[kind]], np.float32), name), 1, 0, 0)
        assert (not numbers.any() and not scales.any() and not starts.any()) is zero, kind


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "bad",
    [NAN, -NAN, INFINITY, -INFINITY, np.uint32(0x7F800001).view(np.float32), np.uint32(0xFFFFFFFF).view(np.float32)],
)
def test_a_block_that_is_not_finite_has_numbers_of_0_and_a_scale_that_shows_it(bad: np.float32, name: str) -> None:
    """Of its own token alone, in the last bits of what a NaN carries as well."""
    for rows in range(1, 7):
        for row in range(rows):
            clean = rows_of(np.random.default_rng(3), rows, 96)
            x = clean.copy()
            x[row, 33] = bad
            made, before = tiles(x, name), tiles(clean, name)
            assert np.array_equal(made, tiles(x, "portable"))
            numbers, scales, starts = block_of_tile(made, rows, row, 1)
            assert not numbers.any()
            assert not starts.any()
            assert (np.isnan if np.isnan(bad) else np.isposinf)(scales[0])
            assert np.isnan(scales[1])
            for token in range(rows):
                for block in range(3):
                    if (token, block) != (row, 1):
                        mine, theirs = (
                            block_of_tile(made, rows, token, block),
                            block_of_tile(before, rows, token, block),
                        )
                        assert all(
                            np.array_equal(a.view(np.uint8), b.view(np.uint8))
                            for a, b in zip(mine, theirs, strict=True)
                        )


@pytest.mark.parametrize("name", KERNELS)
def test_gates_at_the_ends_of_the_exponential(name: str) -> None:
    """Where it underflows, at its border, at zeros of either sign, and of what is no number."""
    border = np.float32(-87.0)
    gates = [
        border,
        np.nextafter(border, np.float32(-100)),
        -88.0,
        -1e4,
        1e4,
        87.0,
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        1e38,
        -1e38,
    ]
    x = np.array([[*gates * 4, *[2.0] * 48]], np.float32)
    for form in ("whole", "shortened"):
        assert np.array_equal(
            tiles(x, name, form=form, before="gated"), tiles(x, "portable", form=form, before="gated")
        )
    out = tiles(x, name, form="whole", before="gated").view(np.float32)[:12]
    gate = x[0, :12].astype(np.float64)
    expected = 2 * np.where(gate < -87, 0, gate / (1 + np.exp(-np.maximum(gate, -700))))
    assert np.allclose(out, expected, rtol=1e-6, atol=1e-44)
    for bad in (NAN, INFINITY, -INFINITY):
        for place in (0, 48):  # the gate, and what it lets through
            y = x.copy()
            y[0, place] = bad
            made = [tiles(y, k, form="whole", before="gated").view(np.float32) for k in ("portable", name)]
            assert np.array_equal(made[0], made[1], equal_nan=True)


def cells(keys: Array, values: Array, name: str, kind: str, offset: int) -> tuple[Array, Array, Array | None]:
    """(64, head_size) keys and values as stored, and of int8 float16 (2, 64) scales; 0xee where nothing was written."""
    memory = core.stored_page(keys, values, name, kind, offset)[0]
    size, number = keys.shape[1], np.dtype(np.float16 if kind == "f16" else np.int8)
    numbers = memory[: 2 * 64 * size * number.itemsize].view(number).reshape(2, -1)
    scales = None if kind == "f16" else memory[2 * 64 * size :].view(np.float16).reshape(2, 64)
    return numbers[0].reshape(size, 64).T, numbers[1].reshape(64, size), scales


def heads(rng: np.random.Generator, positions: int, size: int) -> Array:
    """With every kind of number that float16 treats in its own way, but NaN."""
    x = rng.standard_normal((positions, size)) * 10.0 ** rng.integers(-9, 6, (positions, size))
    odd = [
        0.0,
        -0.0,
        65504.0,
        -65504.0,
        65519.9,
        65520.0,
        -1e38,
        INFINITY,
        -INFINITY,
        2.0**-14,
        2.0**-24,
        2.0**-25,
        1e-45,
    ]
    odd += [-(2.0**-25) * 1.0001, 2.0**-14 - 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2047 / 2048 + 2.0**-12]
    flat = x.reshape(-1)
    flat[: len(odd)] = odd[: flat.size]
    return x.astype(np.float32)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1, 6, 20, 64, 80, 128])
def test_cells_of_float16_are_the_nearest_wherever_they_are_stored(size: int, name: str) -> None:
    for positions, offset in ((1, 0), (1, 63), (3, 5), (8, 8), (8, 3), (13, 51), (64, 0)):
        rng = np.random.default_rng(positions)
        keys, values = heads(rng, positions, size), heads(rng, positions, size)[::-1].copy()
        stored = cells(keys, values, name, "f16", offset)
        for given, got in zip((keys, values), stored, strict=False):
            expected = np.clip(given, -65504, 65504).astype(np.float16)
            assert got is not None
            assert np.array_equal(got[offset : offset + positions].view(np.uint16), expected.view(np.uint16))
            others = np.delete(got.view(np.uint16), slice(offset, offset + positions), axis=0)
            assert (others == 0xEEEE).all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", ["f16", "int8"])
def test_cells_have_the_same_bits_everywhere(kind: str, name: str) -> None:
    """With NaN, infinities, zeros of either sign and heads of nothing but tiny numbers."""
    for size in (1, 7, 64, 72, 200):
        rng = np.random.default_rng(size)
        keys, values = heads(rng, 9, size), heads(rng, 9, size)
        keys[1], values[2], keys[3], values[4] = 0.0, -0.0, 1e-8, 1e-45
        keys[5, size // 2], values[6, size - 1] = NAN, np.uint32(0xFF812345).view(np.float32)
        keys[7], values[7] = np.linspace(-127, 127, size) / 2, 3e38
        for offset in (0, 50):
            made, expected = (core.stored_page(keys, values, k, kind, offset)[0] for k in (name, "portable"))
            assert np.array_equal(made, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_cells_of_int8_are_rounded_in_multiples_of_a_scale_that_shows_what_is_no_number(name: str) -> None:
    rng = np.random.default_rng(5)
    keys, values = (rng.standard_normal((5, 24)).astype(np.float32) for _ in range(2))
    keys[2, 3] = NAN
    *stored, scales = cells(keys, values, name, "int8", 7)
    assert scales is not None
    for given, got, scale in zip((keys, values), stored, scales[:, 7:12], strict=True):
        for x, numbers, step in zip(given, got[7:12], scale, strict=True):
            if np.isnan(x).any():
                assert np.isnan(step)
                assert not numbers.any()
                continue
            assert step == np.float16(np.abs(x).max() / np.float32(127))
            inverse = np.float32(1) / step.astype(np.float32)
            assert np.array_equal(numbers, np.rint(x * inverse))


@pytest.mark.parametrize("count", [1, 7, 8, 15, 16, 17, 63, 64, 65, 200, 1000])
def test_candidates_weigh_the_same_everywhere(count: int) -> None:
    rng = np.random.default_rng(count)
    logits = (rng.standard_normal(count) * 10.0 ** rng.integers(-1, 3, count)).astype(np.float32)
    logits[rng.random(count) < 0.1] = -INFINITY
    logits[rng.integers(count)] = 250.0
    best, factor = 250.0, 1.7
    weights, sums, tops = core.weigh(logits, best, factor, "portable")
    with np.errstate(under="ignore"):
        exact = np.exp2((logits.astype(np.float64) - best) * np.float64(np.float32(factor)))
    exponents = (logits - np.float32(best)) * np.float32(factor)
    assert np.array_equal(weights[exponents < -100], np.zeros(np.count_nonzero(exponents < -100)))
    near = exponents >= -100
    # Of an exponent rounded to float32, up to 2^-18 away, and a power of two that is 2e-7 away.
    assert np.allclose(weights[near], exact[near], rtol=1e-5, atol=0)
    starts = range(0, count, 64)
    assert np.allclose(sums, [weights[at : at + 64].astype(np.float64).sum() for at in starts], rtol=1e-14)
    assert np.array_equal(tops, [weights[at : at + 64].max() for at in starts])
    for name in KERNELS:
        for made, expected in zip(core.weigh(logits, best, factor, name), (weights, sums, tops), strict=True):
            assert made.tobytes() == expected.tobytes(), name
