"""Every instruction set's kernels give the same bits, and those are the product that was asked for."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from native.weights import PACKED, ROUNDED, WHOLE, random_weights
from tokenloom.native_ext.engine import EngineError
from tokenloom.native_ext.native import core

Array = npt.NDArray[Any]
KERNELS = core.usable_kernels(emulated=True)
ALWAYS = {"portable"}
#: (rows, columns in blocks): one row, fewer than a group, whole groups, groups and a rest.
SHAPES = [(1, 1), (5, 3), (16, 1), (33, 2), (100, 5)]
#: In place of a block for types that have none: odd numbers of columns.
ODD = 7


def activations(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Of differing size from block to block, with a block of zeros."""
    x = rng.standard_normal((rows, columns // 32, 32)) * 10.0 ** rng.integers(-3, 3, (rows, columns // 32, 1))
    x[rows // 2, 0] = 0
    return x.reshape(rows, columns).astype(np.float32)


def rounded_activations(x: Array) -> Array:
    """float64: what the int8 numbers stand for."""
    numbers, scale, *_ = core.quantize_activations(x)
    blocks = numbers.reshape(len(x), -1, 32) * scale[..., None].astype(np.float64)
    return np.asarray(blocks.reshape(x.shape))


def to_11_bits(x: Array) -> Array:
    """float64: what float16 would keep of numbers in its range, at any size."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.asarray(np.ldexp(np.round(mantissa * 2048), exponent - 11))


def used_activations(kind: str, x: Array) -> Array:
    """float64: the numbers that weights of a type are multiplied with."""
    if kind == "F16":
        return to_11_bits(x)
    return x.astype(np.float64) if kind in WHOLE else rounded_activations(x)


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def test_the_reference_is_there_and_names_are_known() -> None:
    assert set(KERNELS) >= ALWAYS
    assert set(KERNELS) <= {"portable", "amx-emulated", "avx2", "avxvnni", "vnni", "amx", "neon"}
    assert core.usable_kernels() == [name for name in KERNELS if name != "amx-emulated"]


@pytest.mark.parametrize(
    ("fault", "passes"), [("none", True), ("wrong", False), ("wrong with many tokens", False), ("illegal", False)]
)
def test_kernels_with_a_fault_are_found_out_before_they_are_chosen(fault: str, passes: bool) -> None:
    """The last bit of one number; an instruction that this machine lacks, which ends a child process alone."""
    assert core.faulty_kernels_pass(fault) is passes


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(kind: str, shape: tuple[int, int]) -> None:
    """For 1 to 33 tokens: integer parts exact, sums in float32; and the same bits whatever the instruction set."""
    rng = np.random.default_rng(3)
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows, columns = shape[0], shape[1] * (ODD if kind in WHOLE else block)
    raw, weights = random_weights(rng, kind, rows, columns)
    matrix = core.PackedMatrix(kind.lower(), raw)
    x = activations(rng, 33, (columns + 31) // 32 * 32)[:, :columns]
    used = used_activations(kind, x)
    expected = used @ weights.T
    size = np.abs(used) @ np.abs(weights.T)  # of the terms, which rounding errors go by
    allowed = (1e-3 if kind in ROUNDED else 2e-6) * size + 1e-30
    whole: Array = core.multiply([matrix], x, "portable")[0]
    assert whole.dtype == np.float32
    assert (np.abs(whole - expected) <= allowed).all()
    if kind not in WHOLE:
        plain = x.astype(np.float64) @ weights.T
        far = np.repeat(np.abs(x.reshape(33, -1, 32)).max(2) / 127 / 2, 32, axis=1) @ np.abs(weights.T)
        assert (np.abs(whole - plain) <= 1.01 * far + allowed).all()
    for tokens in range(1, 34):
        for name in KERNELS:
            assert same_bits(core.multiply([matrix], x[:tokens], name)[0], whole[:tokens]), (name, tokens)


@pytest.mark.parametrize("kind", PACKED)
def test_no_worse_than_ggml(kind: str) -> None:
    """Against the exact product: activations are rounded to 8 bits here as there, or not at all."""
    rng = np.random.default_rng(4)
    raw, weights = random_weights(rng, kind, 128, 1024)
    x = rng.standard_normal((16, 1024)).astype(np.float32)
    exact = x.astype(np.float64) @ weights.T
    ours = core.multiply([core.PackedMatrix(kind.lower(), raw)], x)[0]
    theirs = core.ggml_multiply(kind.lower(), raw, x)[0]
    errors = [np.linalg.norm(y - exact) / np.linalg.norm(exact) for y in (ours, theirs)]
    assert errors[0] <= max(1.02 * errors[1], 2e-6) < 0.02


@pytest.mark.parametrize("name", KERNELS)
def test_extremes_do_not_overflow(name: str) -> None:
    """The largest sums: all weights and activations at an end of their range."""
    for kind, byte, largest in (("Q4_1", 0xFF, 15), ("Q4_0", 0x00, -8), ("Q4_0", 0xFF, 7), ("Q8_0", 0x80, -128)):
        head = np.array([1.0, 0.0][: 2 if kind == "Q4_1" else 1], np.float16).view(np.uint8)
        raw = np.tile(np.concatenate([head, np.full(32 if kind == "Q8_0" else 16, byte, np.uint8)]), (16, 2))
        for sign in (1, -1):
            x = np.full((3, 64), 127.0 * sign, np.float32)
            out = core.multiply([core.PackedMatrix(kind.lower(), raw)], x, name)[0]
            assert (out == 64 * 127 * sign * largest).all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", ["F16", "F32"])
def test_small_and_large_floating_point_numbers_are_kept(kind: str, name: str) -> None:
    """Down to the smallest that float16 has, without its normal exponent, and up to its largest."""
    numbers = np.array([[2.0**-24, -(2.0**-24), 2.0**-14, 65504.0, -0.0, 1.0]], np.float16)
    raw = numbers.astype(np.float16 if kind == "F16" else np.float32)
    for k in range(numbers.shape[1]):
        x = np.zeros((2, numbers.shape[1]), np.float32)
        x[1, k] = 3.0
        out = core.multiply([core.PackedMatrix(kind.lower(), raw.view(np.uint8))], x, name)[0]
        assert out.tolist() == [[0.0], [3.0 * float(numbers[0, k])]]


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_lie_below_each_other_whatever_the_threads(threads: int) -> None:
    rng = np.random.default_rng(5)
    parts = [
        core.PackedMatrix(kind.lower(), random_weights(rng, kind, rows, 256)[0])
        for kind, rows in (("Q4_1", 70), ("Q8_0", 7), ("Q4_0", 300))
    ]
    for tokens in (1, 5, 70, 150):  # more than one item's tiles
        x = activations(rng, tokens, 256)
        together = core.multiply(parts, x, threads=threads)[0]
        assert same_bits(together, np.concatenate([core.multiply([part], x)[0] for part in parts], axis=1))


def test_activations_are_rounded_to_nearest_in_blocks() -> None:
    x = activations(np.random.default_rng(6), 40, 96)
    numbers, scale, scaled_sum, start8, start128 = core.quantize_activations(x)
    blocks = x.reshape(40, 3, 32)
    assert np.array_equal(scale, np.abs(blocks).max(2) / np.float32(127))
    shaped = numbers.reshape(40, 3, 32).astype(np.int32)
    assert np.abs(shaped).max() == 127
    assert (np.abs(shaped * scale[..., None].astype(np.float64) - blocks) <= 0.5001 * scale[..., None]).all()
    sums = shaped.sum(2)
    assert np.array_equal(scaled_sum, scale * sums.astype(np.float32))
    assert np.array_equal(start8, -8 * sums)
    assert np.array_equal(start128, -128 * sums)


def test_activations_of_float16_weights_keep_11_bits_and_their_range() -> None:
    x = np.array([[1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11 - 2**-20, 1e20, -3e-20, np.inf]], np.float32)
    matrix = core.PackedMatrix("f16", np.eye(6, dtype=np.float16).view(np.uint8))
    kept: list[float] = []
    for k in range(6):
        alone = np.zeros((1, 6), np.float32)
        alone[0, k] = x[0, k]
        kept.append(float(core.multiply([matrix], alone)[0][0, k]))
    assert kept[:3] == [1.0, 1 + 4 * 2**-11, -1 - 2**-10]
    assert np.allclose(kept[3:5], x[0, 3:5], rtol=2**-11)
    assert kept[5] == np.inf


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_not_finite_shows_in_its_own_row_alone(bad: float, name: str) -> None:
    rng = np.random.default_rng(7)
    matrix = core.PackedMatrix("q4_1", random_weights(rng, "Q4_1", 20, 64)[0])
    x = activations(rng, 9, 64)
    clean = core.multiply([matrix], x, name)[0]
    x[4, 40] = bad
    out = core.multiply([matrix], x, name)[0]
    assert not np.isfinite(out[4]).any()
    rest = [0, 1, 2, 3, 5, 6, 7, 8]
    assert same_bits(out[rest], clean[rest])


@pytest.mark.parametrize("name", ["sse9", "amx ", *({"avx2", "avxvnni", "vnni", "amx", "neon"} - set(KERNELS))])
def test_kernels_that_are_not_there_are_refused_with_those_that_are(name: str) -> None:
    """Unknown, or of another machine; those for tests are not offered."""
    matrix = core.PackedMatrix("q8_0", random_weights(np.random.default_rng(8), "Q8_0", 1, 32)[0])
    there = ", ".join(["auto, ggml", *core.usable_kernels()])
    with pytest.raises(EngineError, match=f"^TOKENLOOM_KERNELS is '{name}'; this machine has {there}$"):
        core.multiply([matrix], np.zeros((1, 32), np.float32), name)


def test_parts_that_need_other_activations_do_not_go_together() -> None:
    rng = np.random.default_rng(5)
    parts = [core.PackedMatrix(kind.lower(), random_weights(rng, kind, 16, 64)[0]) for kind in ("Q8_0", "F16")]
    with pytest.raises(ValueError, match="activations of one form"):
        core.multiply(parts, np.zeros((1, 64), np.float32))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kind", "columns"), [("Q8_0", 96), ("F16", 91)])
def test_normalizing_gating_and_adding_on_the_way(kind: str, columns: int, threads: int) -> None:
    """Against products of the activations as float64 has them, which may round to a neighbouring int8."""
    rng = np.random.default_rng(9)
    raw, weights = random_weights(rng, kind, columns, columns)
    matrix = core.PackedMatrix(kind.lower(), raw)
    for tokens in (1, 3, 40):
        x = rng.standard_normal((tokens, columns)).astype(np.float32) * 5
        scale = rng.uniform(0.5, 2, columns).astype(np.float32)
        wide = rng.standard_normal((tokens, 2 * columns)).astype(np.float32) * 5
        gate, up = wide[:, :columns].astype(np.float64), wide[:, columns:].astype(np.float64)
        normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 0.1) * scale
        cases: list[tuple[Array, Array, dict[str, Any], Array | float]] = [
            (x, normed, {"before": "normed", "weight": scale.tolist(), "epsilon": 0.1}, 0.0),
            (wide, gate / (1 + np.exp(-gate)) * up, {"before": "gated"}, 0.0),
            (x, x, {"add": True}, x),
        ]
        for given, meant, options, added in cases:
            ours = core.multiply([matrix], given, threads=threads, **options)[0]
            expected = meant @ weights.T + added
            assert np.linalg.norm(ours - expected) / np.linalg.norm(expected) < (1e-3 if kind in WHOLE else 0.015)
            close = core.multiply([matrix], meant.astype(np.float32))[0] + added
            assert np.linalg.norm(ours - close) / np.linalg.norm(close) < 3e-3
            for row in range(tokens):
                alone = core.multiply([matrix], given[row : row + 1], threads=1, **options)[0]
                assert same_bits(alone[0], ours[row])


def test_gates_far_from_zero() -> None:
    matrix = core.PackedMatrix("q8_0", random_weights(np.random.default_rng(10), "Q8_0", 16, 32)[0])
    up = np.ones(32, np.float32)
    open_, closed = (
        core.multiply([matrix], np.concatenate([np.full(32, g, np.float32), up])[None], before="gated")[0]
        for g in (1e4, -1e4)
    )
    assert np.array_equal(open_, core.multiply([matrix], np.full((1, 32), 1e4, np.float32))[0])
    assert (closed == 0).all()
