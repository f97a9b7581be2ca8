"""Mixtures of experts."""

from __future__ import annotations

from families.decoder import QKV, Decoder, Experts, every

MIXTRAL = Decoder("llama", experts=Experts(width=96))
QWEN2MOE = Decoder(
    "qwen2moe",
    biases=QKV,
    experts=Experts(width=32, used=3, shared=48, shared_gate=True),
    keys={"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
)
QWEN3MOE = Decoder(
    "qwen3moe",
    head_size=24,
    head_norms="head",
    experts=Experts(count=12, used=4),
    keys={"expert_feed_forward_length": 32},
)
GRANITEMOE = Decoder(
    "granitemoe",
    experts=Experts(width=32, shared=48),
    feed_forward=32,
    keys={"embedding_scale": 1.5, "residual_scale": 0.7, "attention.scale": 0.4, "logit_scale": 2.5,
          "expert_shared_feed_forward_length": 48},
)  # fmt: skip
GLM4MOE = Decoder(
    "glm4moe",
    head_size=24,
    norms=("attn_norm", "post_attention_norm"),
    head_norms="head",
    biases=QKV,
    experts=Experts(used=3, shared=32, choosing_bias=True, dense_lead=1),
    keys={"rope.dimension_count": 12, "expert_feed_forward_length": 32, "expert_shared_count": 1,
          "leading_dense_block_count": 1, "expert_weights_norm": True, "expert_weights_scale": 1.8},
)  # fmt: skip
GPT_OSS = Decoder(
    "gpt-oss",
    layers=4,
    head_size=32,
    norms=("attn_norm", "post_attention_norm"),
    biases=(*QKV, "attn_output", "ffn_gate_inp"),
    experts=Experts(used=3, biases=True),
    extra=every(4, {"attn_sinks.weight": ((4,), 1, 1)}),
    gains={"ffn_gate_exps": 3, "ffn_up_exps": 3, "ffn_down_exps": 0.3},  # beyond where the activation is clamped
    keys={"expert_feed_forward_length": 32, "attention.sliding_window": 12, "rope.dimension_count": 32,
          "rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
          "rope.scaling.original_context_length": 64},
)  # fmt: skip
ERNIE = Decoder(
    "ernie4_5-moe",
    head_size=24,
    experts=Experts(used=3, shared=48, choosing_bias=True, dense_lead=1),
    keys={"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48, "interleave_moe_layer_step": 1,
          "leading_dense_block_count": 1},
)  # fmt: skip
HUNYUAN = Decoder(
    "hunyuan-moe",
    head_size=24,
    head_norms="head",
    feed_forward=32,
    experts=Experts(used=3, shared=48),
    keys={"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
)

MIXTURES = {
    "mixtral": MIXTRAL,
    "mixtral-scales": MIXTRAL.but(experts=Experts(width=96, scales=True)),
    "mixtral-one-expert": MIXTRAL.but(experts=Experts(width=96, used=1, gate=False)),
    "qwen2moe": QWEN2MOE,
    "qwen2moe-widths": QWEN2MOE.but(
        feed_forward=96, experts=Experts(width=32, used=3, shared=96, shared_gate=True),
        keys={"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None},
    ),
    "qwen3moe": QWEN3MOE,
    "qwen3moe-scales": QWEN3MOE.but(
        tied=True, gains={"token_embd": 0.4}, experts=Experts(count=12, used=4, scales=True)
    ),
    "granitemoe": GRANITEMOE,
    "granitemoe-plain": GRANITEMOE.but(
        experts=Experts(width=32),
        keys={"expert_shared_feed_forward_length": None, "rope.scaling.finetuned": False, "residual_scale": None},
    ),
    "olmoe": Decoder("olmoe", kv_heads=4, head_norms="row", feed_forward=32, experts=Experts(used=3)),
    "glm4moe": GLM4MOE,
    "glm4moe-groups": GLM4MOE.but(
        head_norms="", experts=Experts(used=3, shared=64, choosing_bias=True, dense_lead=2),
        keys={"expert_group_count": 4, "expert_group_used_count": 2, "expert_shared_count": 2,
              "leading_dense_block_count": 2, "expert_weights_norm": None, "expert_weights_scale": None,
              "expert_gating_func": 2},
    ),
    "gpt-oss": GPT_OSS,
    "ernie4_5-moe": ERNIE,
    "ernie4_5-moe-no-bias": ERNIE.but(
        tied=True, gains={"token_embd": 0.4}, experts=Experts(used=3),
        keys={"leading_dense_block_count": None, "expert_shared_feed_forward_length": None},
    ),
    "hunyuan-moe": HUNYUAN,
}  # fmt: skip
