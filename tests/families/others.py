"""Families that norm after a branch too, add both branches at once, or see a window only."""

from __future__ import annotations

from typing import Any

from families.decoder import QKV, Decoder

AROUND = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
AFTER = ("post_attention_norm", "post_ffw_norm")
#: Of many layers, each of which adds little: else what float16 cells round away grows from layer to layer.
DEEP: dict[str, Any] = {"embedding": 32, "heads": 2, "kv_heads": 1, "feed_forward": 48}
GENTLE = {"post_attention_norm": 0.08, "post_ffw_norm": 0.08}

# Gemma multiplies embeddings by the root of their length.
GEMMA = Decoder("gemma", head_size=32, kv_heads=1, tied=True, gains={"token_embd": 0.06})
GEMMA2 = GEMMA.but(
    architecture="gemma2",
    layers=4,
    kv_heads=2,
    norms=AROUND,
    keys={"attention.sliding_window": 12, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
)
GEMMA3 = GEMMA.but(
    architecture="gemma3",
    layers=6,
    norms=AROUND,
    head_norms="head",
    gains={"token_embd": 0.06, "attn_q_norm": 0.8, "attn_k_norm": 0.8},
    keys={"attention.sliding_window": 12, "rope.freq_base": 1000000.0, "rope.scaling.type": "linear",
          "rope.scaling.factor": 8.0},
)  # fmt: skip
OLMO2 = Decoder("olmo2", norms=AFTER, head_norms="row", keys={"rope.freq_base": 500000.0})
EXAONE4 = Decoder("exaone4", norms=AFTER, head_norms="head", extra={"rope_freqs.weight": ((8,), 4, 2)})
GLM4 = Decoder("glm4", head_size=32, norms=AROUND, fused_gate=True, biases=QKV, keys={"rope.dimension_count": 16})
COMMAND_R = Decoder(
    "command-r", norms=("attn_norm",), layer_norm=True, tied=True, gains={"token_embd": 0.4}, keys={"logit_scale": 0.5}
)
COHERE2 = COMMAND_R.but(
    architecture="cohere2", layers=5, keys={"attention.sliding_window": 12, "rope.freq_base": 50000.0}
)

OTHERS = {
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma2-defaults": GEMMA2.but(
        layers=3, gains={"attn_q": 1.2, "attn_k": 1.2, "token_embd": 0.6, "post_attention_norm": 6, "post_ffw_norm": 6},
        keys={"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention.sliding_window_pattern": 3},
    ),
    "gemma2-46-layers": GEMMA2.but(
        layers=46, **DEEP, gains={"post_attention_norm": 0.14, "post_ffw_norm": 0.14, "token_embd": 0.04}
    ),
    "gemma3": GEMMA3,
    "gemma3-array": GEMMA3.but(
        layers=4, tied=False,
        keys={"attention.sliding_window_pattern": [True, False, False, True], "rope.freq_base_swa": 20000.0,
              "final_logit_softcapping": 12.0},
    ),
    "gemma3-62-layers": GEMMA3.but(layers=62, **DEEP, gains=GENTLE),
    "gemma3-no-window": GEMMA3.but(layers=3, keys={"attention.sliding_window": None}),
    "olmo2": OLMO2,
    "olmo3": OLMO2.but(
        layers=5,
        keys={"attention.sliding_window": 12, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
              "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.2},
    ),
    "exaone4": EXAONE4.but(tied=True, gains={"token_embd": 0.4}, keys={"attention.sliding_window": 12}),
    "exaone4-64-layers": EXAONE4.but(
        layers=64, **DEEP, head_size=16, gains=GENTLE, keys={"attention.sliding_window": 12}
    ),
    "glm4": GLM4,
    "glm4-plain": GLM4.but(head_size=16, biases=(), keys={"rope.dimension_count": None}),
    "command-r": COMMAND_R,
    "command-r-64-layers": COMMAND_R.but(
        layers=64, **DEEP, head_norms="heads", gains={"attn_output": 0.15, "ffn_down": 0.15}
    ),
    "cohere2": COHERE2,
}  # fmt: skip
