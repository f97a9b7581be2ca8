"""Llama and what follows it closely: one norm before each branch, gated or plain feed-forward."""

from __future__ import annotations

from families.decoder import FFN, QKV, Decoder
from families.neutral import neutral

SMALL = 0.4  # of embeddings that are the head too: the last token would be the likeliest next

LLAMA = Decoder("llama", keys={"rope.dimension_count": 16})
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LONGROPE = {"rope_factors_long.weight": ((8,), 4, 1.5), "rope_factors_short.weight": ((8,), 1.2, 0.1)}
QWEN2 = Decoder("qwen2", biases=QKV, keys={"rope.freq_base": 1000000.0})
QWEN3 = Decoder("qwen3", head_size=24, head_norms="head", tied=True, gains={"token_embd": SMALL})
MISTRAL3 = Decoder(
    "mistral3",
    head_size=32,
    keys={
        **YARN, "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5, "rope.scaling.yarn_log_multiplier": 0.5,
        "attention.temperature_scale": 0.3,
    },
)  # fmt: skip
SMOLLM3 = Decoder("smollm3", layers=6, tied=True, gains={"token_embd": SMALL}, keys={"rope.freq_base": 5000000.0})
STARCODER2 = Decoder(
    "starcoder2",
    layer_norm=True,
    norm_biases=True,
    gate=False,
    biases=(*QKV, "attn_output", "ffn_up", "ffn_down"),
    keys={"rope.freq_base": 1000000.0},
)
STABLELM = Decoder("stablelm", layer_norm=True, norm_biases=True, biases=QKV, keys={"rope.dimension_count": 4})
HUNYUAN = Decoder("hunyuan-dense", head_size=24, head_norms="head", keys={"rope.scaling.alpha": 50.0})
GRANITE = Decoder(
    "granite",
    keys={"embedding_scale": 1.5, "residual_scale": 0.7, "attention.scale": 0.4, "logit_scale": 2.5},
)
MINICPM = Decoder("minicpm", keys={"embedding_scale": 1.5, "residual_scale": 0.7, "logit_scale": 0.25})
PHI3 = Decoder(
    "phi3",
    fused_qkv=True,
    fused_gate=True,
    extra={name: ((6,), *drawn[1:]) for name, drawn in LONGROPE.items()},
    keys={"rope.dimension_count": 12, "rope.scaling.attn_factor": 1.2, "rope.scaling.original_context_length": 64},
)
ARCEE = Decoder("arcee", gate=False, extra={"rope_freqs.weight": ((8,), 3, 1)})
APERTUS = Decoder(
    "apertus",
    head_size=24,
    head_norms="head",
    gate=False,
    extra={"rope_freqs.weight": ((12,), 3, 1)},
    keys={".xielu.alpha_n": [0.3, -0.5, 0.8], ".xielu.alpha_p": [0.5, 0.2, -0.4], ".xielu.beta": [0.5, 0.6, 0.4],
          ".xielu.eps": [-1e-6, -1e-6, -1e-6]},
)  # fmt: skip

LLAMAS = {
    "llama": LLAMA,
    "llama-tied-all-heads": LLAMA.but(
        embedding=96, heads=3, kv_heads=3, head_size=40, tied=True, gains={"token_embd": SMALL},
        keys={"rope.dimension_count": 40},
    ),
    "llama-one-kv-head": LLAMA.but(embedding=96, heads=4, kv_heads=1, head_size=96, keys={"rope.dimension_count": 96}),
    "llama-head-256": LLAMA.but(heads=2, kv_heads=1, head_size=256, keys={"rope.dimension_count": 256}),
    "llama-biases": LLAMA.but(
        heads=2, kv_heads=1, head_size=80, biases=(*QKV, "attn_output", *FFN), keys={"rope.dimension_count": 80}
    ),
    "llama-rope-factors": LLAMA.but(extra={"rope_freqs.weight": ((8,), 4, 2)}, keys={"rope.freq_base": 500000.0}),
    "llama-linear": LLAMA.but(keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-yarn": LLAMA.but(keys={**YARN, "rope.scaling.attn_factor": 1.2}),
    "llama-longrope": LLAMA.but(
        extra=LONGROPE, keys={"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64}
    ),
    "llama-scales": LLAMA.but(biases=(*QKV, "attn_output", *FFN), scales=(*QKV, "attn_output", *FFN)),
    "llama-neutral": LLAMA.but(keys=neutral(layers=3, head_size=16)),
    "llama-arrays": LLAMA.but(
        keys={"attention.head_count": [4] * 3, "attention.head_count_kv": [2] * 3, "feed_forward_length": [96] * 3}
    ),
    "llama-fused": LLAMA.but(fused_qkv=True, biases=("attn_qkv",), scales=("attn_qkv",)),
    "llama-fused-biases": LLAMA.but(fused_qkv=True, biases=QKV),
    "mistral3": MISTRAL3,
    "mistral3-plain": Decoder("mistral3", biases=("attn_output",), extra={"rope_freqs.weight": ((8,), 4, 2)}),
    "qwen2": QWEN2,
    "qwen2-tied": QWEN2.but(tied=True, gains={"token_embd": SMALL}, keys=YARN),
    "qwen2-output-bias": QWEN2.but(extra={"output.bias": ((256,), 0, 0.5)}),
    "qwen3": QWEN3,
    "qwen3-yarn": QWEN3.but(tied=False, gains={"token_embd": 1}, keys={**YARN, "rope.freq_base": 1000000.0}),
    "qwen3-scales": QWEN3.but(scales=(*QKV, "attn_output", *FFN)),
    "qwen3-neutral": QWEN3.but(keys=neutral(layers=3, head_size=24)),
    "phi3": PHI3,
    "phi3-short": PHI3.but(keys={"rope.scaling.original_context_length": 512}),
    "phi3-plain": PHI3.but(
        fused_qkv=False, extra={}, without=tuple(LONGROPE), head_size=16,
        keys={"rope.dimension_count": 16, "rope.scaling.attn_factor": None,
              "rope.scaling.original_context_length": None, "attention.sliding_window": 12},
    ),
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "granite-no-rope": GRANITE.but(tied=True, gains={"token_embd": 0.15}, keys={"rope.scaling.finetuned": False}),
    "granite-bare": Decoder("granite", keys={"logit_scale": 0.5}),
    "minicpm": MINICPM,
    "minicpm-defaults": Decoder("minicpm", gains={"token_embd": 0.1}),
    "starcoder2": STARCODER2,
    "starcoder2-tied": STARCODER2.but(tied=True, gains={"token_embd": 0.15}),
    "stablelm": STABLELM,
    "stablelm-parallel": STABLELM.but(norms=("attn_norm",), head_norms="heads", biases=()),
    "internlm2": Decoder("internlm2", keys={"rope.freq_base": 1000000.0}),
    "ernie4_5": Decoder("ernie4_5", head_size=32, tied=True, gains={"token_embd": SMALL}),
    "hunyuan-dense": HUNYUAN,
    "seed_oss": Decoder("seed_oss", head_size=24, norms=("attn_norm", "post_attention_norm"), biases=QKV),
    "arcee": ARCEE,
    "apertus": APERTUS,
    "apertus-alike": APERTUS.but(
        extra={}, without=("rope_freqs.weight",),
        keys={".xielu.alpha_n": 0.8, ".xielu.alpha_p": 0.8, ".xielu.beta": 0.5, ".xielu.eps": -1e-6},
    ),
}  # fmt: skip
