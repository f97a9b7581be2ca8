"""Gemma 4, whose layers differ: windowed and full ones in their heads, and the last ones have no cells of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from families.decoder import Array, Decoder, Drawn, Experts

NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
MIXTURE_NORMS = ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
#: Divides an angle to nothing: how the file says which pairs of a full layer's heads are not turned.
UNTURNED = 1e30


@dataclass(frozen=True)
class Gemma4(Decoder):
    """``heads``, ``kv_heads`` and ``head_size`` are of windowed layers; ``full_...`` of the others.

    The last ``shared`` layers have no keys and values, and a wider feed-forward. Where ``keys_as_values``, full layers
    have no attn_v. ``per_layer`` is the width of per-layer embeddings.
    """

    architecture: str = "gemma4"
    layers: int = 6
    windowed: tuple[bool, ...] = (True, False, True, False, True, False)
    full_kv_heads: int = 1
    full_head_size: int = 32
    shared: int = 0
    keys_as_values: bool = False
    per_layer: int = 0

    def values(self) -> dict[str, Any]:
        keys = {
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": list(self.windowed),
            "attention.shared_kv_layers": self.shared,
            "attention.head_count_kv": [self.kv_heads if near else self.full_kv_heads for near in self.windowed],
            "attention.key_length": self.full_head_size,
            "attention.value_length": self.full_head_size,
            "attention.key_length_swa": self.head_size,
            "attention.value_length_swa": self.head_size,
            "rope.dimension_count": self.full_head_size,
            "rope.dimension_count_swa": self.head_size,
            "rope.freq_base": 1000000.0,
            "rope.freq_base_swa": 10000.0,
            "embedding_length_per_layer_input": self.per_layer,
            "feed_forward_length": [self._hidden(layer) for layer in range(self.layers)],
        }
        own = {f"{self.architecture}.{name}": value for name, value in keys.items()}
        return {**super().values(), **own} | {f"{self.architecture}.{k}": v for k, v in self.keys.items()}

    def drawn(self) -> dict[str, Drawn]:
        out = super().drawn()
        out["rope_freqs.weight"] = ((self.full_head_size // 2,), 1.5, 0.2)
        if self.per_layer:
            all_layers = self.per_layer * self.layers
            out["per_layer_token_embd.weight"] = ((self.vocabulary, all_layers), 0, 1 / math.sqrt(self.per_layer))
            out |= self._matrix("per_layer_model_proj", all_layers, self.embedding, 8)
            out |= self._norm("per_layer_proj_norm", (self.per_layer,))
        return out

    def tensors(self) -> dict[str, Array]:
        out = super().tensors()
        factors = out["rope_freqs.weight"]
        factors[3 * len(factors) // 4 :] = np.float32(UNTURNED)
        return out

    def _hidden(self, layer: int) -> int:
        return self.feed_forward * (2 if layer >= self.layers - self.shared else 1)

    def _attention(self, layer: int) -> dict[str, Drawn]:
        near = self.windowed[layer]
        size, heads = (self.head_size, self.kv_heads) if near else (self.full_head_size, self.full_kv_heads)
        wide = self.embedding
        out: dict[str, Drawn] = {}
        for name in (*NORMS, *(MIXTURE_NORMS if self.experts else ())):
            out |= self._norm(name, (wide,))
        out |= self._matrix("attn_q", self.heads * size, wide)
        # The product of queries and keys is not divided by the root of their size.
        out |= self._norm("attn_q_norm", (size,), 1 / size**0.25)
        out |= self._matrix("attn_output", wide, self.heads * size)
        if layer < self.layers - self.shared:
            out |= self._matrix("attn_k", heads * size, wide)
            out |= self._norm("attn_k_norm", (size,), 1 / size**0.25)
            if near or not self.keys_as_values:
                out |= self._matrix("attn_v", heads * size, wide)
        out["layer_output_scale.weight"] = ((1,), 0.9, 0.1)
        return out

    def _feed_forward(self, layer: int) -> dict[str, Drawn]:
        wide, hidden = self.embedding, self._hidden(layer)
        out = self._matrix("ffn_gate", hidden, wide) | self._matrix("ffn_up", hidden, wide)
        out |= self._matrix("ffn_down", wide, hidden)
        if self.experts is not None:
            out |= self._mixture(self.experts)
            out["ffn_gate_inp.scale"] = ((wide,), 8, 2)
        if self.per_layer:
            out |= self._matrix("inp_gate", self.per_layer, wide) | self._matrix("proj", wide, self.per_layer)
            out |= self._norm("post_norm", (wide,))
        return out


GEMMA4 = Gemma4(
    tied=True,
    gains={"token_embd": 0.11, "post_norm": 0.5},
    per_layer=16,
    shared=2,
    keys={"final_logit_softcapping": 4.0},
)
WIDE = GEMMA4.but(per_layer=0, shared=0, keys_as_values=True, layers=4, windowed=(True, True, False, True))

GEMMA4S = {
    "gemma4": GEMMA4,
    "gemma4-keys-as-values": WIDE.but(gains={"token_embd": 0.09}),
    "gemma4-experts": WIDE.but(
        experts=Experts(count=8, used=3, width=24, fused_gate=True, down_scale=True),
        keys={"expert_feed_forward_length": 24},
    ),
    "gemma4-experts-apart": WIDE.but(
        experts=Experts(count=8, used=2, width=24, scales=True), tied=False,
        keys={"expert_feed_forward_length": 24, "final_logit_softcapping": 0.0},
    ),
}  # fmt: skip
