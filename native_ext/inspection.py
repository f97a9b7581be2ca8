"""What a model file holds and would cost, told without loading it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.native_ext.native import core


@dataclass(frozen=True)
class LayerShape:
    """One layer. ``window``: positions that a query sees, 0 for all; ``turns``: whether RoPE does; ``feed_forward``: 0
    of a layer with experts.
    """

    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int
    turns: bool
    feed_forward: int


@dataclass(frozen=True)
class ExpertShape:
    """Experts of a layer, how many a token uses, the width of each, and of the one that all use (0: none)."""

    count: int
    used: int
    feed_forward: int
    shared: int


@dataclass(frozen=True)
class TypeWeights:
    """Matrices of one weight type, their bytes in the file and in memory, and whether our own kernels multiply them."""

    matrices: int
    file_bytes: int
    memory_bytes: int
    quick: bool


@dataclass(frozen=True)
class Inspection:
    """A model file that opens. ``cell_bytes``: of one token's cells, by ``kv_type``."""

    architecture: str
    models: str
    name: str
    vocabulary: int
    embedding: int
    context: int
    layers: tuple[LayerShape, ...]
    experts: ExpertShape | None
    types: Mapping[str, TypeWeights]
    cell_bytes: Mapping[str, int]


def inspect(model: str | os.PathLike[str] | Path) -> Inspection:
    """Read and check everything but the weights' numbers. Raises ModelError for a file that would be refused."""
    found: dict[str, Any] = core.inspect(os.fsencode(model))
    experts = found.pop("experts")
    return Inspection(
        layers=tuple(LayerShape(**layer) for layer in found.pop("layers")),
        experts=None if experts is None else ExpertShape(**experts),
        types={name: TypeWeights(*row) for name, row in found.pop("types").items()},
        **found,
    )
