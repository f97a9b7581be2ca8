"""What the sides are asked for, and the tokens of it: the same for all, so that they do the same work.

A *tree* is a list of levels, each (nodes, tokens of a node's own); nodes are dealt evenly to the level above, and the
last level's are the sessions. ``[(32, 1024)]`` is 32 independent sessions, ``[(1, 2048), (32, 32)]`` 32 clones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Token ids are drawn from here: ordinary ones of every vocabulary that counts.
FIRST, LAST = 1000, 30000


@dataclass(frozen=True)
class Node:
    """One node: its number in the order of making, its parent's, its own tokens, and all up to their end."""

    number: int
    parent: int | None
    own: list[int]
    length: int


def tokens(name: str, count: int) -> list[int]:
    """``count`` token ids that depend on ``name`` alone."""
    source = random.Random(name)
    return [source.randint(FIRST, LAST) for _ in range(count)]


def grow(levels: Sequence[Sequence[int]], name: str = "tree") -> tuple[list[Node], list[Node]]:
    """All nodes, parents first, and the last level's."""
    nodes: list[Node] = []
    above: list[Node] = []
    for depth, (count, own) in enumerate(levels):
        level = []
        for index in range(count):
            parent = above[index * len(above) // count] if above else None
            length = own + (parent.length if parent else 0)
            level.append(
                Node(len(nodes), parent.number if parent else None, tokens(f"{name} {depth} {index}", own), length)
            )
            nodes.append(level[-1])
        above = level
    return nodes, above


def line_of(node: Node, nodes: Sequence[Node]) -> list[int]:
    """All tokens from the root to the node's end."""
    before = line_of(nodes[node.parent], nodes) if node.parent is not None else []
    return before + node.own
