"""Turns for everyone: interleaving what belongs to different tenants, so that one with much work delays nobody else's.

A tenant is the label a job carries; jobs without one share the label "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Item = TypeVar("Item")


def in_turn(
    items: Iterable[Item], tenant_of: Callable[[Item], str], ahead: Mapping[str, int] | None = None
) -> list[Item]:
    """The items so that each tenant's first comes before any tenant's second, and so on; order within a tenant is kept.

    ``ahead`` counts what a tenant has already: its items rank that much later.
    """
    rank: Counter[str] = Counter(ahead or {})
    ranked = []
    for index, item in enumerate(items):
        tenant = tenant_of(item)
        ranked.append((rank[tenant], index, item))
        rank[tenant] += 1
    ranked.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in ranked]
