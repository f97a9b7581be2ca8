"""A forward in float64 that was written on its own agrees with llama.cpp: the truths say what the families are."""

from __future__ import annotations

import pytest

from families.reference import Reference
from families.rules import RULES
from families.table import FILES
from families.truths import LENGTHS, Truth, ratio

#: Of a row's range. What float32 leaves, and llama.cpp's table of GELU, which is of float16.
LIMIT, LIMIT_OF_GELU = 1e-5, 6e-4
#: Beyond the windows; the third would take most of the time.
ROWS = 2


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_of_llama_cpp(name: str) -> None:
    truth = Truth.load(name)
    rows = Reference(FILES[name]).logits(truth.prompt[: LENGTHS[ROWS - 1]].tolist())
    off = [ratio(rows[length - 1], true) for length, true in zip(LENGTHS[:ROWS], truth.rows[:ROWS], strict=True)]
    limit = LIMIT_OF_GELU if RULES[FILES[name].architecture].activation == "gelu" else LIMIT
    assert max(off) <= limit, f"{name}: max |difference| / range {off}"
