"""Llama-architecture GGUF files of a few kilobytes with random weights, written with the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

import tiny_gguf

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TinyLlama:
    """What to write. ``overrides`` replaces or (with None) removes key-values after the defaults are set."""

    layers: int = 2
    embedding: int = 64
    feed_forward: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    vocabulary: int = 97
    context: int = 1024
    rms_epsilon: float = 1e-5
    freq_base: float = 10000.0
    rope_dimensions: int | None = None
    scaling: str | None = None
    scaling_factor: float | None = None
    original_context: int | None = None
    attn_factor: float | None = None
    rope_factors: tuple[float, ...] | None = None
    tied: bool = False
    biases: bool = False
    weight_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    vector_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    seed: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def rotated(self) -> int:
        return self.head_size if self.rope_dimensions is None else self.rope_dimensions

    def tensors(self) -> dict[str, Array]:
        """Float32 weights by GGUF name, matrices as (out, in)."""
        rng = np.random.default_rng(self.seed)

        def matrix(rows: int, columns: int) -> Array:
            values: Array = rng.standard_normal((rows, columns)) / np.sqrt(columns)
            return np.asarray(values, np.float32)

        def vector(size: int, around: float) -> Array:
            return np.asarray(around + 0.2 * rng.standard_normal(size), np.float32)

        width, query, key = self.embedding, self.heads * self.head_size, self.kv_heads * self.head_size
        out = {"token_embd.weight": 3 * matrix(self.vocabulary, width), "output_norm.weight": vector(width, 1)}
        if not self.tied:
            out["output.weight"] = 3 * matrix(self.vocabulary, width)
        if self.rope_factors is not None:
            out["rope_freqs.weight"] = np.array(self.rope_factors, np.float32)
        for i in range(self.layers):
            block = f"blk.{i}."
            out[block + "attn_norm.weight"] = vector(width, 1)
            out[block + "ffn_norm.weight"] = vector(width, 1)
            sizes = {
                "attn_q": (query, width),
                "attn_k": (key, width),
                "attn_v": (key, width),
                "attn_output": (width, query),
                "ffn_gate": (self.feed_forward, width),
                "ffn_up": (self.feed_forward, width),
                "ffn_down": (width, self.feed_forward),
            }
            for name, (rows, columns) in sizes.items():
                # Sharp attention and strong layers, so that a mistake in either shows in the logits.
                out[block + name + ".weight"] = (2 if name in ("attn_q", "attn_k") else 1) * matrix(rows, columns)
                if self.biases:
                    out[block + name + ".bias"] = vector(rows, 0)
        return out

    def values(self) -> dict[str, Any]:
        """Key-values under GGUF names; ints are written as uint32, floats as float32."""
        values: dict[str, Any] = {
            "general.name": "tiny",
            "llama.block_count": self.layers,
            "llama.embedding_length": self.embedding,
            "llama.feed_forward_length": self.feed_forward,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head_size,
            "llama.attention.value_length": self.head_size,
            "llama.attention.layer_norm_rms_epsilon": self.rms_epsilon,
            "llama.context_length": self.context,
            "llama.rope.freq_base": self.freq_base,
            "llama.rope.dimension_count": self.rope_dimensions,
            "llama.rope.scaling.type": self.scaling,
            "llama.rope.scaling.factor": self.scaling_factor,
            "llama.rope.scaling.original_context_length": self.original_context,
            "llama.rope.scaling.attn_factor": self.attn_factor,
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(self.vocabulary)],
        }
        values |= self.overrides
        return {name: value for name, value in values.items() if value is not None}

    def write_as(self, path: Path, kind: str, encode: Callable[[Array, str], Array]) -> Path:
        """Write the file with every matrix of a type, as ``encode(float32 (rows, columns), kind)`` stores it."""
        matrices = {name: data for name, data in self.tensors().items() if data.ndim > 1}
        stored_as = gguf.GGMLQuantizationType[kind]
        return self.write(path, raw={name: (encode(data, kind), stored_as) for name, data in matrices.items()})

    def write(
        self,
        path: Path,
        tensors: dict[str, Array | None] | None = None,
        raw: dict[str, tuple[Array, gguf.GGMLQuantizationType]] | None = None,
    ) -> Path:
        """Write the file. ``tensors`` adds or replaces some by name (None: leaves out), ``raw`` encoded ones."""
        values = self.values()
        architecture = values.pop("general.architecture", "llama")
        stored = {}
        for name, data in (self.tensors() | (tensors or {})).items():
            if raw and name in raw:
                stored[name] = raw[name]
            elif data is not None:
                kind = self._type_of(data)
                stored[name] = gguf.quants.quantize(data, kind), kind
        return tiny_gguf.write(path, architecture, values, stored)

    def _type_of(self, data: Array) -> gguf.GGMLQuantizationType:
        return self.weight_type if data.ndim > 1 else self.vector_type

    def stored(self) -> dict[str, Array]:
        """The tensors as a reader of the file sees them: rounded to the file's types, as float32."""
        out = {}
        for name, data in self.tensors().items():
            kind = self._type_of(data)
            out[name] = gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind)
        return out
