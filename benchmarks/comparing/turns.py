"""Who measures after whom.

What one leaves behind, in caches or in threads that still watch for work, must not always fall on the same.
"""

from __future__ import annotations

from collections.abc import Sequence


def turns(names: Sequence[str], turn: int) -> list[str]:
    """The order of one round.

    Over as many rounds as there are names each has every place once, and is behind each of the others once (of an odd
    number, twice over twice as many): a balanced Latin square.
    """
    count = len(names)
    if count == 0:
        return []
    # 0, 1, n-1, 2, n-2, ...: its neighbours differ by another number each, so that its shifts meet in all pairs.
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    order = [names[(shift + turn) % count] for shift in zigzag]
    return order[::-1] if count % 2 and turn // count % 2 else order
