"""A plain float64 forward of every family, one sequence at a time, to check truths and engines against.

Written from the papers and the models' descriptions; ``rules.py`` says what differs. Of what a family may have it does
what the file has a tensor for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from families.decoder import Decoder
from families.mixing import choice
from families.numbers import Array, capped, gelu, rms, sigmoid, silu, softmax, xielu
from families.rules import RULES
from families.turning import angles, turn


class Reference:
    """Of one file. ``cells`` is what keys and values are rounded to."""

    def __init__(self, file: Decoder, cells: type[np.floating[Any]] = np.float64) -> None:
        self.file, self.cells, self.rules = file, cells, RULES[file.architecture]
        prefix = f"{file.architecture}."
        self.keys = {name.removeprefix(prefix): value for name, value in file.values().items()}
        self.w: dict[str, Array] = {name: data.astype(np.float64) for name, data in file.tensors().items()}
        self.windows = self.rules.windows(self.keys, file.layers)
        epsilon = "layer_norm_epsilon" if self.rules.layer_norm else "layer_norm_rms_epsilon"
        self.epsilon = float(np.float32(self.keys[f"attention.{epsilon}"]))
        self.cached: dict[int, tuple[Array, Array]] = {}

    def logits(self, tokens: Sequence[int]) -> Array:
        """(tokens, vocabulary)."""
        x = self.w["token_embd.weight"][list(tokens)] * self._scale("embedding_scale")
        if self.rules.embedding_root:
            x = x * math.sqrt(self.file.embedding)
        per_layer = self._per_layer(x, tokens)
        self.cached = {}
        for layer in range(self.file.layers):
            x = self._layer(layer, x)
            if per_layer is not None:
                gate = gelu(self._linear(layer, "inp_gate", x)) * per_layer[:, layer]
                x = x + self._norm(f"blk.{layer}.post_norm", self._linear(layer, "proj", gate))
            x = x * self.w.get(f"blk.{layer}.layer_output_scale.weight", 1.0)
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        out: Array = self._norm("output_norm", x) @ head.T + self.w.get("output.bias", 0.0)
        if self.rules.scales:
            return out / self._scale("logit_scale")
        if self.rules.parallel:
            return out * float(self.keys["logit_scale"])
        cap = self.keys.get("final_logit_softcapping", self.rules.caps[1]) if self.rules.embedding_root else 0
        return capped(out, cap)

    def _scale(self, name: str) -> float:
        return self.rules.scale(name, self.keys, self.file.layers)

    def _per_layer(self, x: Array, tokens: Sequence[int]) -> Array | None:
        """Gemma 4's (tokens, layers, width), from the embeddings and a table of its own."""
        if "per_layer_token_embd.weight" not in self.w:
            return None
        projected = (x @ self.w["per_layer_model_proj.weight"].T).reshape(len(x), self.file.layers, -1)
        projected = self._norm("per_layer_proj_norm", projected / math.sqrt(self.file.embedding))
        own = self.w["per_layer_token_embd.weight"][list(tokens)].reshape(projected.shape)
        width = len(self.w["per_layer_proj_norm.weight"])
        return np.asarray((projected + own * math.sqrt(width)) / math.sqrt(2))

    def _layer(self, layer: int, x: Array) -> Array:
        block, scale = f"blk.{layer}.", self._scale("residual_scale")
        normed = self._norm(block + "attn_norm", x)
        branch = self._attention(layer, normed)
        if self.rules.ffn_norm != "post_attention_norm":
            branch = self._norm(block + "post_attention_norm", branch)
        if self.rules.layer_norm and block + "ffn_norm.weight" not in self.w:  # both branches at once
            return np.asarray(x + branch + self._feed_forward(layer, normed, x))
        x = x + scale * branch
        branch = self._feed_forward(layer, self._norm(block + self.rules.ffn_norm, x), x)
        return np.asarray(x + scale * self._norm(block + "post_ffw_norm", branch))

    def _norm(self, name: str, x: Array) -> Array:
        """As it is where the file has no such norm."""
        if f"{name}.weight" not in self.w:
            return x
        if self.rules.layer_norm:
            x = np.asarray(x - x.mean(-1, keepdims=True))
        return np.asarray(rms(x, self.epsilon) * self.w[f"{name}.weight"] + self.w.get(f"{name}.bias", 0.0))

    def _linear(self, layer: int, name: str, x: Array) -> Array:
        name = f"blk.{layer}.{name}"
        scale, bias = self.w.get(f"{name}.scale", 1.0), self.w.get(f"{name}.bias", 0.0)
        if ".ffn_" in name:  # as llama.cpp has it: there the bias is scaled, too
            return np.asarray((x @ self.w[f"{name}.weight"].T + bias) * (scale if self.rules.ffn_scales else 1.0))
        return np.asarray(x @ self.w[f"{name}.weight"].T * scale + bias)

    def _attention(self, layer: int, x: Array) -> Array:
        rules, block, count, heads = self.rules, f"blk.{layer}.", len(x), self.file.heads
        window = self.windows[layer]
        q, kv = self._projected(layer, x)
        size = q.shape[-1] // heads
        q = self._placed(layer, "attn_q_norm", q.reshape(count, heads, size))
        if kv is not None:
            k = self._placed(layer, "attn_k_norm", kv[0].reshape(count, -1, size))
            v = kv[1].reshape(count, -1, size)
            v = rms(v, self.epsilon) if rules.norms_values else v
            self.cached[layer] = k.astype(self.cells).astype(np.float64), v.astype(self.cells).astype(np.float64)
        source = max(i for i in self.cached if kv is not None or (self.windows[i] > 0) == (window > 0))
        if temperature := self.keys.get("attention.temperature_scale"):
            places = np.floor(np.arange(count) / self.keys["rope.scaling.original_context_length"])
            q = q * (1 + temperature * np.log(1 + places))[:, None, None]
        k, v = (np.repeat(part, heads // part.shape[1], 1) for part in self.cached[source])
        scores = np.einsum("qhd,khd->hqk", q, k) * rules.score_scale(self.keys, self.file.layers, size)
        if rules.caps[0]:
            scores = capped(scores, self.keys.get("attn_logit_softcapping", rules.caps[0]))
        distance = np.arange(count)[:, None] - np.arange(count)[None, :]
        scores = np.where((distance < 0) | ((distance >= window) & (window > 0)), -np.inf, scores)
        if block + "attn_sinks.weight" in self.w:
            sinks = np.broadcast_to(self.w[block + "attn_sinks.weight"][:, None, None], (heads, count, 1))
            scores = np.concatenate([scores, sinks], -1)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores)[..., :count], v)
        return self._linear(layer, "attn_output", mixed.reshape(count, -1))

    def _projected(self, layer: int, x: Array) -> tuple[Array, tuple[Array, Array] | None]:
        """Queries, and keys and values unless the layer reads those of another."""
        block = f"blk.{layer}.attn_"
        if block + "qkv.weight" in self.w:
            cut = self.file.heads * self.file.head_size
            q, k, v = np.split(
                self._linear(layer, "attn_qkv", x), [cut, cut + self.file.kv_heads * self.file.head_size], -1
            )
            bias = [self.w.get(f"{block}{name}.bias", 0.0) for name in "qkv"]
            return q + bias[0], (k + bias[1], v + bias[2])
        q = self._linear(layer, "attn_q", x)
        if block + "k.weight" not in self.w:
            return q, None
        k = self._linear(layer, "attn_k", x)
        return q, (k, self._linear(layer, "attn_v", x) if block + "v.weight" in self.w else k)

    def _placed(self, layer: int, norm: str, x: Array) -> Array:
        """Heads (tokens, heads, size) normed and turned, in the family's order."""
        name = f"blk.{layer}.{norm}"

        def normed(x: Array) -> Array:
            whole = self.file.head_norms == "row"
            return self._norm(name, x.reshape(len(x), -1) if whole else x).reshape(x.shape)

        if self.rules.head_norms_after_rope:
            return normed(self._turned(layer, x))
        return self._turned(layer, normed(x))

    def _turned(self, layer: int, x: Array) -> Array:
        if not self.rules.turns(layer, self.windows, self.keys):
            return x
        near = self.windows[layer] > 0
        original = self.keys.get("rope.scaling.original_context_length", self.file.context)
        factors: Array | float = 1.0
        for name in ("rope_freqs", "rope_factors_long" if self.file.context > original else "rope_factors_short"):
            if not (near and self.rules.names == "gemma4"):
                factors = factors * self.w.get(f"{name}.weight", 1.0)
        by, magnitude = angles(self.rules, self.keys, factors, near, len(x), x.shape[-1], original)
        return turn(x, by, magnitude, self.rules.neox)

    def _feed_forward(self, layer: int, x: Array, before: Array) -> Array:
        """``before``: of the norm, which gemma4's router and experts norm in their own way."""
        block = f"blk.{layer}."
        if block + "ffn_gate_inp.weight" not in self.w:
            return self._dense(layer, "", x)
        if self.rules.names == "gemma4":
            routed = rms(before, self.epsilon) / math.sqrt(self.file.embedding) * self.w[block + "ffn_gate_inp.scale"]
            scores = routed @ self.w[block + "ffn_gate_inp.weight"].T
            mixed = self._mixed(layer, self._norm(block + "pre_ffw_norm_2", before), scores)
            dense = self._norm(block + "post_ffw_norm_1", self._dense(layer, "", x))
            return np.asarray(dense + self._norm(block + "post_ffw_norm_2", mixed))
        out = self._mixed(layer, x, self._linear(layer, "ffn_gate_inp", x))
        if block + "ffn_up_shexp.weight" in self.w:
            gate = self.w.get(block + "ffn_gate_inp_shexp.weight")
            share: Array | float = 1.0 if gate is None else sigmoid(x @ gate)[:, None]
            out = out + share * self._dense(layer, "_shexp", x)
        return out

    def _dense(self, layer: int, suffix: str, x: Array) -> Array:
        up = self._linear(layer, f"ffn_up{suffix}", x)
        gate = None
        if f"blk.{layer}.ffn_gate{suffix}.weight" in self.w:
            gate = self._linear(layer, f"ffn_gate{suffix}", x)
        elif self.file.fused_gate:
            gate, up = np.split(up, 2, -1)
        return self._linear(layer, f"ffn_down{suffix}", self._hidden(layer, gate, up))

    def _hidden(self, layer: int, gate: Array | None, up: Array) -> Array:
        if self.rules.activation == "clamped" and gate is not None:
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return np.asarray(gate * sigmoid(1.702 * gate) * (up + 1))
        return self._activated(layer, up) if gate is None else self._activated(layer, gate) * up

    def _activated(self, layer: int, x: Array) -> Array:
        match self.rules.activation:
            case "gelu":
                return gelu(x)
            case "relu2":
                return np.asarray(np.maximum(x, 0) ** 2)
            case "xielu":
                given = [self.keys[f"xielu.{name}"] for name in ("alpha_n", "alpha_p", "beta", "eps")]
                return xielu(x, *(value[layer] if isinstance(value, list) else value for value in given))
        return silu(x)

    def _mixed(self, layer: int, x: Array, scores: Array) -> Array:
        assert self.file.experts is not None
        bias = self.w.get(f"blk.{layer}.exp_probs_b.bias", 0.0)
        chosen, weights = choice(self.rules, self.keys, scores, bias, self.file.experts.used)
        out = np.zeros_like(x)
        for expert in range(self.file.experts.count):
            tokens, places = np.nonzero(chosen == expert)
            if len(tokens):
                out[tokens] += weights[tokens, places, None] * self._expert(layer, expert, x[tokens])
        return out

    def _expert(self, layer: int, expert: int, x: Array) -> Array:
        block = f"blk.{layer}."

        def product(name: str, x: Array) -> Array:
            name = f"{block}{name}_exps"
            scale = self.w[f"{name}.scale"][expert] if f"{name}.scale" in self.w and self.rules.ffn_scales else 1.0
            bias = self.w[f"{name}.bias"][expert] if f"{name}.bias" in self.w else 0.0
            return np.asarray(x @ self.w[f"{name}.weight"][expert].T * scale + bias)

        gate = None
        if block + "ffn_gate_up_exps.weight" in self.w:
            gate, up = np.split(product("ffn_gate_up", x), 2, -1)
        else:
            up = product("ffn_up", x)
            if block + "ffn_gate_exps.weight" in self.w:
                gate = product("ffn_gate", x)
        return product("ffn_down", self._hidden(layer, gate, up))
