"""Products of many tokens at a time, on AMX's tiles: the bits of each token alone.

The same source runs on the CPU's tiles where it has some, and on emulated ones, which are held here to what Intel's
manual says of them.
"""

from __future__ import annotations

import struct
from itertools import product
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from native.weights import PACKED, WHOLE, random_weights
from tokenloom.native_ext.native import core

Array = npt.NDArray[Any]
EMULATED = "amx-emulated"
#: None without AVX-512 VNNI, which does the rest.
TILED = [name for name in core.usable_kernels(emulated=True) if name in ("amx", EMULATED)]
MANY = 32
#: Panels of 16, and of every smaller number that there is; chunks of tiles, one and several.
COUNTS = [*range(MANY, 50), 72, 73, 100, 150]
#: (rows, columns in blocks of 32): one block; a rest of rows, and of blocks beyond those that are unpacked at a time.
SHAPES = [(32, 1), (33, 2), (70, 17), (5, 48)]


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind not in WHOLE])
def test_many_tokens_give_the_bits_of_each_alone(kind: str) -> None:
    rng = np.random.default_rng(21)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] // 32
    for rows, blocks in SHAPES:
        columns = (blocks + size - 1) // size * size * 32
        matrix = core.PackedMatrix(kind.lower(), random_weights(rng, kind, rows, columns)[0])
        x = rng.standard_normal((max(COUNTS), columns)).astype(np.float32)
        x[5] = 0
        expected = np.concatenate([core.multiply([matrix], x[i : i + 1], "portable")[0] for i in range(len(x))])
        for name, tokens in product(TILED, COUNTS):
            ours = core.multiply([matrix], x[:tokens], name)[0]
            assert same_bits(ours, expected[:tokens]), (name, rows, blocks, tokens)


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_and_what_is_added(threads: int) -> None:
    """Of several formats below each other, with rests of groups between them, and one larger than an item of work."""
    rng = np.random.default_rng(22)
    parts = [
        core.PackedMatrix(kind.lower(), random_weights(rng, kind, rows, 512)[0])
        for kind, rows in (("Q4_1", 70), ("Q6_K", 7), ("Q4_0", 403), ("Q5_K", 32))
    ]
    for tokens in (MANY, 90, 200):
        x = rng.standard_normal((tokens, 512)).astype(np.float32)
        for name, add in product(TILED, (False, True)):
            ours, theirs = (
                core.multiply(parts, x, kernels, threads=threads, add=add)[0] for kernels in (name, "portable")
            )
            assert same_bits(ours, theirs), name


def test_tiles_are_used_from_32_tokens_on() -> None:
    """One product for 16 rows, a block and a panel of up to 16 tokens; for fewer tokens, and for floats, none."""
    rng = np.random.default_rng(23)
    cases = (
        ("Q4_1", 96, MANY - 1, 0),
        ("Q4_1", 96, MANY, 3 * 2),
        ("Q8_0", 96, MANY + 1, 3 * 3),
        ("F16", 96, MANY, 0),
        ("Q4_0", 8192, MANY, 256 * 2),  # tiles too large to lie in a cache together
        ("Q4_0", 8192, 90, 256 * 2 * 3),  # in two chunks of 45
    )
    for kind, columns, tokens, expected in cases if EMULATED in TILED else ():
        matrix = core.PackedMatrix(kind.lower(), random_weights(rng, kind, 64, columns)[0])
        before = core.emulated_tile_products()
        core.multiply([matrix], np.ones((tokens, columns), np.float32), EMULATED)
        assert core.emulated_tile_products() - before == 4 * expected, (kind, columns, tokens)


def configuration(tiles: dict[int, tuple[int, int]], palette: int = 1, start: int = 0, reserved: int = 0) -> bytes:
    """What LDTILECFG reads, of (rows, bytes of a row) by tile."""
    bytes_of_rows = [tiles.get(i, (0, 0))[1] for i in range(8)]
    rows = [tiles.get(i, (0, 0))[0] for i in range(8)]
    return struct.pack("<BB14x8H16x8B7xB", palette, start, *bytes_of_rows, *rows, reserved)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (16, 8, 16), (11, 4, 16), (1, 1, 1), (7, 5, 3)])
def test_an_emulated_product_is_the_manual_s(m: int, k: int, n: int, times: int) -> None:
    """C[m][n] += A[m][4k + i] * B[k][4n + i], of signed bytes; nothing is read or written beyond rows and columns."""
    rng = np.random.default_rng(m)
    left, right = (rng.integers(-128, 128, (16, 64)).astype(np.int8) for _ in range(2))
    right[: min(k, 2)] = left[0] = -128
    sums = core.emulated_tile_product(
        left, right, configuration({0: (m, 4 * n), 1: (m, 4 * k), 2: (k, 4 * n)}), 0, times
    )
    a = left[:m, : 4 * k].astype(np.int64)
    b = right[:k, : 4 * n].reshape(k, n, 4).transpose(0, 2, 1).reshape(4 * k, n).astype(np.int64)
    expected = np.zeros((16, 16), np.int64)
    expected[:m, :n] = times * (a @ b)
    assert np.array_equal(sums, expected)


FITTING = {0: (16, 64), 1: (16, 32), 2: (8, 64)}


@pytest.mark.parametrize(
    ("message", "tiles", "more"),
    [
        ("no such palette", FITTING, {"palette": 2}),
        ("without a configuration", FITTING, {"palette": 0}),
        ("reserved bytes", FITTING, {"reserved": 1}),
        ("more than 16 rows", FITTING | {7: (17, 64)}, {}),
        ("more than 64 bytes", FITTING | {7: (16, 68)}, {}),
        ("rows without bytes", FITTING | {7: (16, 0)}, {}),
        ("bytes without rows", FITTING | {7: (0, 64)}, {}),
        ("not configured", {0: (16, 64), 1: (16, 32)}, {}),
        ("differ in rows", FITTING | {0: (15, 64)}, {}),
        ("k-groups are not", FITTING | {2: (7, 64)}, {}),
        ("differ in columns", FITTING | {2: (8, 60)}, {}),
        ("whole groups of four", FITTING | {0: (16, 62), 2: (8, 62)}, {}),
    ],
)
def test_what_faults_on_a_cpu_does_so_emulated(
    message: str, tiles: dict[int, tuple[int, int]], more: dict[str, int]
) -> None:
    zeros = np.zeros((16, 64), np.int8)
    core.emulated_tile_product(zeros, zeros, configuration(FITTING))
    with pytest.raises(RuntimeError, match=message):
        core.emulated_tile_product(zeros, zeros, configuration(tiles, **more))


def test_operands_must_be_three_tiles() -> None:
    square = configuration({1: (16, 64), 2: (16, 64)})
    with pytest.raises(RuntimeError, match="the same tile"):
        core.emulated_tile_product(np.zeros((16, 64), np.int8), np.zeros((16, 64), np.int8), square, 1)
