"""Medians with their quartiles: of a side's rounds, and of its ratios to another's of the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TypedDict


class Spread(TypedDict):
    """Of ``count`` numbers."""

    median: float
    q1: float
    q3: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Quartiles by linear interpolation between the sorted values, the least and the greatest included.

    ValueError when there is none.
    """
    if not values:
        raise ValueError("a spread of no values")
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    return {"median": median, "q1": q1, "q3": q3, "count": len(values)}


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """Of theirs by ours, round by round: what slows a whole round falls out. ValueError unless both have the same."""
    return spread([their / our for their, our in zip(theirs, ours, strict=True)])
