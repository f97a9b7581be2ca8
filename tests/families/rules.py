"""How each family computes, for the reference forward: a row an architecture, from its description and papers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Rules:
    """Defaults are those of most families.

    ``pattern``: every n-th layer sees all, the others a window; 0 for no windows. ``ffn_norm``: the norm before the
    feed-forward. ``caps``: of scores and of logits, where the file says none. ``local_...``: of layers with a window.
    ``..._keys``: the file is asked. ``names`` is the architecture.
    """

    neox: bool = False
    layer_norm: bool = False
    parallel: bool = False
    ffn_norm: str = "ffn_norm"
    head_norms_after_rope: bool = False
    norms_values: bool = False
    activation: Literal["silu", "gelu", "relu2", "xielu", "clamped"] = "silu"
    embedding_root: bool = False
    scales: bool = False
    pattern: int = 0
    window: int = 0
    caps: tuple[float, float] = (0, 0)
    local_base: float | None = None
    local_scaling: bool = True
    yarn_keys: bool = False
    ffn_scales: bool = False
    gating: Literal["softmax", "sigmoid", "after"] = "softmax"
    normalized: bool = True
    weight_keys: bool = False
    names: str = ""

    def windows(self, keys: Keys, layers: int) -> list[int]:
        """The window of each layer, 0 for none."""
        size = keys.get("attention.sliding_window", self.window)
        pattern = keys.get("attention.sliding_window_pattern", self.pattern)
        if isinstance(pattern, list):
            return [size if near else 0 for near in pattern]
        if not self.pattern or (self.names == "exaone4" and layers != 64):
            return [0] * layers
        return [size if layer % pattern < pattern - 1 else 0 for layer in range(layers)]

    def turns(self, layer: int, windows: list[int], keys: Keys) -> bool:
        """Whether the layer's queries and keys are turned by their positions."""
        match self.names:
            case "smollm3":
                return layer % 4 != 3
            case "cohere2":
                return windows[layer] > 0
            case "exaone4":
                return windows[layer] > 0 or not any(windows)
            case "granite":
                return bool(keys.get("rope.scaling.finetuned", True))
        return True

    def score_scale(self, keys: Keys, layers: int, size: int) -> float:
        """What products of queries and keys are multiplied by."""
        if self.names == "gemma4":
            return 1.0
        if self.names in ("granite", "granitemoe") and keys.get("attention.scale"):
            return float(keys["attention.scale"])
        if (self.names, layers) in (("gemma2", 46), ("gemma3", 62)):
            size = keys["embedding_length"] // keys["attention.head_count"]
        return 1 / math.sqrt(size)

    def scale(self, name: str, keys: Keys, layers: int) -> float:
        """``embedding_scale``, ``residual_scale`` or ``logit_scale``, of families that have them."""
        defaults = {}
        if self.names == "minicpm":
            defaults = {
                "embedding_scale": 12.0,
                "residual_scale": 1.4 / math.sqrt(layers),
                "logit_scale": 256 / keys["embedding_length"],
            }
        return float(keys.get(name) or defaults.get(name, 1.0)) if self.scales else 1.0


GEMMA = Rules(neox=True, embedding_root=True, activation="gelu")
NEOX = Rules(neox=True)
AFTER_ROPE = Rules(neox=True, head_norms_after_rope=True)
POST = Rules(neox=True, ffn_norm="post_attention_norm")
_ROWS: dict[str, Rules] = {
    "llama": Rules(ffn_scales=True),
    "mistral3": Rules(ffn_scales=True, yarn_keys=True),
    "qwen2": NEOX,
    "qwen3": replace(NEOX, ffn_scales=True),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, pattern=2, window=4096, caps=(50, 30)),
    "gemma3": replace(GEMMA, pattern=6, local_base=10000, local_scaling=False),
    "gemma4": replace(GEMMA, caps=(0, 30), local_base=10000, local_scaling=False, norms_values=True, ffn_scales=True),
    "phi3": NEOX,
    "granite": Rules(scales=True),
    "granitemoe": Rules(scales=True),
    "minicpm": Rules(scales=True),
    "smollm3": Rules(),
    "olmo2": replace(NEOX, pattern=4, local_scaling=False),
    "exaone4": replace(NEOX, pattern=4, window=4096),
    "glm4": Rules(),
    "command-r": Rules(layer_norm=True, parallel=True),
    "cohere2": Rules(layer_norm=True, parallel=True, pattern=4, ffn_scales=True),
    "starcoder2": replace(NEOX, layer_norm=True, activation="gelu"),
    "stablelm": replace(NEOX, layer_norm=True),
    "internlm2": Rules(),
    "ernie4_5": Rules(),
    "hunyuan-dense": AFTER_ROPE,
    "seed_oss": POST,
    "arcee": Rules(activation="relu2"),
    "apertus": replace(NEOX, activation="xielu"),
    "qwen2moe": replace(NEOX, normalized=False),
    "qwen3moe": replace(NEOX, ffn_scales=True),
    "olmoe": replace(NEOX, normalized=False),
    "glm4moe": replace(POST, gating="sigmoid", weight_keys=True),
    "gpt-oss": replace(POST, activation="clamped", pattern=2, gating="after", normalized=False),
    "ernie4_5-moe": Rules(),
    "hunyuan-moe": AFTER_ROPE,
}
RULES = {name: replace(rules, names=name) for name, rules in _ROWS.items()}
