"""Model files of any decoder family: tiny, F32, with random weights that are the same everywhere for good.

A ``Decoder`` says what tensors a family's file has and what its keys say; nothing here knows how a forward uses them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt

import tiny_gguf
from quality.models import encode

Array = npt.NDArray[np.float32]
#: A tensor's shape as numpy has it, what its values lie around, and their standard deviation.
Drawn = tuple[tuple[int, ...], float, float]

QKV = ("attn_q", "attn_k", "attn_v")
FFN = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Experts:
    """The mixture of every layer from ``dense_lead`` on. ``shared`` is the shared expert's width, 0 for none.

    ``gate`` without which there is none, ``fused_gate`` where it lies above ffn_up in one matrix.
    """

    count: int = 8
    used: int = 2
    width: int = 32
    shared: int = 0
    shared_gate: bool = False
    choosing_bias: bool = False
    biases: bool = False
    scales: bool = False
    down_scale: bool = False
    gate: bool = True
    fused_gate: bool = False
    dense_lead: int = 0

    def matrices(self, wide: int) -> dict[str, tuple[int, int]]:
        """(out, in) of one expert's matrices, by name."""
        if self.fused_gate:
            into = {"ffn_gate_up_exps": (2 * self.width, wide)}
        else:
            into = {"ffn_gate_exps": (self.width, wide)} if self.gate else {}
            into["ffn_up_exps"] = self.width, wide
        return {**into, "ffn_down_exps": (wide, self.width)}


#: Parts of the names of what is float32 in every file: norms, biases, routers.
KEPT = ("norm", "bias", "ffn_gate_inp")


@dataclass(frozen=True)
class Decoder:
    """What to write. ``keys`` go without the architecture's name, but for those with a dot in front: ``.general.name``.

    ``biases`` and ``scales`` name matrices that have a ``.bias`` or ``.scale``. ``extra`` adds tensors and ``without``
    leaves some out, by whole names; ``gains`` multiplies all weights of a name. ``head_norms``, of queries and keys:
    "head" for one weight for every head, "heads" for one of (heads, head size), "row" for one over all heads together.
    """

    architecture: str
    layers: int = 3
    embedding: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    feed_forward: int = 96
    vocabulary: int = 256
    context: int = 512
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    layer_norm: bool = False
    norm_biases: bool = False
    head_norms: Literal["", "head", "heads", "row"] = ""
    fused_qkv: bool = False
    fused_gate: bool = False
    gate: bool = True
    biases: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    tied: bool = False
    experts: Experts | None = None
    extra: Mapping[str, Drawn] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    gains: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1

    def but(self, **changes: Any) -> Decoder:
        """With some fields changed; ``keys``, ``extra`` and ``gains`` are added to, and a key of None is left out."""
        for name in ("keys", "extra", "gains"):
            if name in changes:
                changes[name] = {**getattr(self, name), **changes[name]}
        return replace(self, **changes)

    def values(self) -> dict[str, Any]:
        """Key-values under their whole names."""
        epsilon = "layer_norm_epsilon" if self.layer_norm else "layer_norm_rms_epsilon"
        keys: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "context_length": self.context,
            "embedding_length": self.embedding,
            "block_count": self.layers,
            "feed_forward_length": self.feed_forward,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            f"attention.{epsilon}": 1e-5,
            ".tokenizer.ggml.model": "none",
            ".tokenizer.ggml.tokens": [f"t{i}" for i in range(self.vocabulary)],
        }
        if self.heads * self.head_size != self.embedding:
            keys |= {"attention.key_length": self.head_size, "attention.value_length": self.head_size}
        if self.experts is not None:
            keys |= {"expert_count": self.experts.count, "expert_used_count": self.experts.used}
        named = {(k[1:] if k[0] == "." else f"{self.architecture}.{k}"): v for k, v in {**keys, **self.keys}.items()}
        return {name: value for name, value in named.items() if value is not None}

    def drawn(self) -> dict[str, Drawn]:
        """Shape, middle and spread of every tensor."""
        wide = self.embedding
        out: dict[str, Drawn] = {"token_embd.weight": ((self.vocabulary, wide), 0, 1)}
        out |= self._norm("output_norm", (wide,))
        if not self.tied:
            out["output.weight"] = ((self.vocabulary, wide), 0, 3 / math.sqrt(wide))
        for layer in range(self.layers):
            block = self._attention(layer) | self._feed_forward(layer)
            out |= {f"blk.{layer}.{name}": drawn for name, drawn in block.items()}
        out |= self.extra
        for name in self.without:
            del out[name]
        gained = zip(out.items(), map(self._gain, out), strict=True)
        return {name: (size, by * middle, by * spread) for (name, (size, middle, spread)), by in gained}

    def tensors(self) -> dict[str, Array]:
        """Float32 values by name, matrices as (out, in), experts' as (expert, out, in)."""
        draw = uniform(self.seed)
        return {name: draw(*drawn) for name, drawn in self.drawn().items()}

    def digest(self) -> str:
        """Of keys and tensors: what a truth was made for."""
        state = hashlib.sha256(self.architecture.encode())
        for name, value in sorted(self.values().items()):
            state.update(f"{name}={value if not isinstance(value, np.int32) else int(value)!r}\n".encode())
        for name, data in sorted(self.tensors().items()):
            state.update(f"{name}{data.shape}".encode())
            state.update(data.tobytes())
        return state.hexdigest()[:16]

    def write(self, path: Path, kind: str = "F32") -> Path:
        """Write the file, of some hundred kilobytes; matrices in another type where its blocks divide their columns."""
        block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
        stored = {}
        for name, data in self.tensors().items():
            matrix = data.ndim > 1 and data.shape[-1] % block == 0 and not any(part in name for part in KEPT)
            own = kind if matrix else "F32"
            rows = encode(data.reshape(-1, data.shape[-1]), own).reshape(*data.shape[:-1], -1) if matrix else data
            stored[name] = (rows, gguf.GGMLQuantizationType[own])
        return tiny_gguf.write(path, self.architecture, self.values(), stored)

    def _gain(self, name: str) -> float:
        parts = name.split(".")
        return self.gains.get(parts[2] if parts[0] == "blk" else parts[0], 1.0) if parts[-1] == "weight" else 1.0

    def _norm(self, name: str, shape: tuple[int, ...], middle: float = 1) -> dict[str, Drawn]:
        out: dict[str, Drawn] = {f"{name}.weight": (shape, middle, 0.2)}
        if self.norm_biases:
            out[f"{name}.bias"] = (shape, 0, 0.2)
        return out

    def _matrix(self, name: str, rows: int, columns: int, gain: float = 1) -> dict[str, Drawn]:
        out: dict[str, Drawn] = {f"{name}.weight": ((rows, columns), 0, gain / math.sqrt(columns))}
        if name in self.biases:
            out[f"{name}.bias"] = ((rows,), 0, 0.3)
        if name in self.scales:
            out[f"{name}.scale"] = ((1,), 1, 0.3)
        return out

    def _attention(self, layer: int) -> dict[str, Drawn]:
        wide, query, key = self.embedding, self.heads * self.head_size, self.kv_heads * self.head_size
        out: dict[str, Drawn] = {}
        for name in self.norms:
            out |= self._norm(name, (wide,))
        if self.fused_qkv:
            out |= self._matrix("attn_qkv", query + 2 * key, wide, 1.2)
            sizes = zip(QKV, (query, key, key), strict=True)
            out |= {f"{name}.bias": ((size,), 0, 0.3) for name, size in sizes if name in self.biases}
        else:  # sharp attention, so that a mistake in it shows in the logits
            out |= self._matrix("attn_q", query, wide, 1.2)
            out |= self._matrix("attn_k", key, wide, 1.2)
            out |= self._matrix("attn_v", key, wide)
        out |= self._matrix("attn_output", wide, query)
        if self.head_norms:
            shapes = {
                "head": ((self.head_size,), (self.head_size,)),
                "heads": ((self.heads, self.head_size), (self.kv_heads, self.head_size)),
                "row": ((query,), (key,)),
            }[self.head_norms]
            for name, shape in zip(("attn_q_norm", "attn_k_norm"), shapes, strict=True):
                out[f"{name}.weight"] = (shape, 1.2, 0.3)
        return out

    def _feed_forward(self, layer: int) -> dict[str, Drawn]:
        wide, hidden, experts = self.embedding, self.feed_forward, self.experts
        if experts is not None and layer >= experts.dense_lead:
            return self._mixture(experts)
        out: dict[str, Drawn] = {}
        if self.gate and not self.fused_gate:
            out |= self._matrix("ffn_gate", hidden, wide)
        out |= self._matrix("ffn_up", 2 * hidden if self.fused_gate else hidden, wide)
        return out | self._matrix("ffn_down", wide, hidden, 2)

    def _mixture(self, experts: Experts) -> dict[str, Drawn]:
        wide, count = self.embedding, experts.count
        out = self._matrix("ffn_gate_inp", count, wide)
        if experts.choosing_bias:
            out["exp_probs_b.bias"] = ((count,), 0, 0.1)
        for name, (rows, columns) in experts.matrices(wide).items():
            down = name == "ffn_down_exps"
            out[f"{name}.weight"] = ((count, rows, columns), 0, (3 if down else 1) / math.sqrt(columns))
            if experts.biases:
                out[f"{name}.bias"] = ((count, rows), 0, 0.3)
            if experts.scales or (down and experts.down_scale):
                out[f"{name}.scale"] = ((count,), 1, 0.3)
        if experts.shared:
            out |= self._matrix("ffn_gate_shexp", experts.shared, wide)
            out |= self._matrix("ffn_up_shexp", experts.shared, wide)
            out |= self._matrix("ffn_down_shexp", wide, experts.shared, 2)
        if experts.shared_gate:
            out["ffn_gate_inp_shexp.weight"] = ((wide,), 0, 1 / math.sqrt(wide))
        return out


def uniform(seed: int) -> Callable[[tuple[int, ...], float, float], Array]:
    """Draws float32 arrays of a shape, evenly spread around ``middle`` with standard deviation ``spread``.

    From PCG64's raw numbers, which numpy promises to keep, where it may change what a Generator makes of them.
    """
    bits = np.random.PCG64(seed)

    def draw(shape: tuple[int, ...], middle: float, spread: float) -> Array:
        raw = bits.random_raw(math.prod(shape)).reshape(shape)
        unit = (raw >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
        return np.asarray(middle + spread * math.sqrt(12) * (unit - 0.5), np.float32)

    return draw


def every(layers: int, drawn: Mapping[str, Drawn]) -> dict[str, Drawn]:
    """The same tensors for every layer, under their whole names."""
    return {f"blk.{layer}.{name}": shape for layer in range(layers) for name, shape in drawn.items()}
