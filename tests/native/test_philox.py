"""Philox4x32-10 gives the numbers its authors publish, and the uniform built from it is what philox.h says."""

from __future__ import annotations

import pytest

from tokenloom.native_ext._core import philox4x32, philox_uniform

# Counter, key and result from Random123's kat_vectors, lines "philox4x32 10".
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert tuple(philox4x32(counter, key)) == expected


@pytest.mark.parametrize(
    ("seed", "position"), [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**40 + 5), (0x123456789ABCDEF0, 77)]
)
def test_uniform_is_the_top_53_bits_of_the_first_two_words(seed: int, position: int) -> None:
    words = philox4x32((position & 0xFFFFFFFF, position >> 32, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    assert philox_uniform(seed, position) == (((words[1] << 32) | words[0]) >> 11) / 2**53


def test_uniform_stays_in_range_and_differs_by_seed_and_by_position() -> None:
    drawn = [philox_uniform(seed, position) for seed in range(50) for position in range(50)]
    assert all(0 <= number < 1 for number in drawn)
    assert len(set(drawn)) == len(drawn)
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.02
