"""Keys as a writer that leaves none out writes them: each says what holds without it, or what no family here asks."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Integers that are 0.
NOTHING = [
    "attention.compress_ratios", "attention.decay_lora_rank", "attention.gate_lora_rank",
    "attention.group_norm_groups", "attention.iclr_lora_rank", "attention.indexer.block_size",
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.kpool",
    "attention.indexer.local_blocks", "attention.indexer.top_k", "attention.indexer.types",
    "attention.key_length_mla", "attention.key_length_mla_swa", "attention.kv_lora_rank",
    "attention.kv_lora_rank_swa", "attention.output_group_count", "attention.output_lora_rank",
    "attention.q_lora_rank", "attention.recurrent_layers", "attention.relative_buckets_count",
    "attention.shared_kv_layers", "attention.sliding_window", "attention.temperature_length",
    "attention.value_length_mla", "attention.value_length_mla_swa", "attention.value_residual_mix_lora_rank",
    "attn_res.block_size", "convnext.block_count", "convnext.embedding_length", "decoder_block_count",
    "dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out", "embedding_length_per_layer_input",
    "expert_chunk_feed_forward_length", "expert_count", "expert_feed_forward_length", "expert_gating_func",
    "expert_group_count", "expert_group_used_count", "expert_latent_length", "expert_shared_count",
    "expert_shared_feed_forward_length", "expert_used_count", "experts_per_group", "hash_layer_count", "hrm.h_cycles",
    "hrm.l_cycles", "hrm.layers_per_stack", "hyper_connection.count", "hyper_connection.low_rank",
    "hyper_connection.sinkhorn_iterations", "interleave_moe_layer_step", "kda.head_dim", "leading_dense_block_count",
    "moe_every_n_layers", "n_deepstack_layers", "nextn_predict_layers", "posnet.block_count",
    "posnet.embedding_length", "rescale_every_n_layers", "shortconv.l_cache", "ssm.conv_kernel", "ssm.group_count",
    "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "time_decay_extra_dim", "time_mix_extra_dim",
    "wkv.head_size",
]  # fmt: skip
#: Floats that are 0.
NO_FACTOR = [
    "activation.situ_linear_beta", "attention.clamp_kqv", "attention.compress_rope_freq_base",
    "attention.group_norm_epsilon", "attention.max_alibi_bias", "attention.output_scale", "attention.scale",
    "attention.temperature_scale", "attention.value_scale", "embedding_scale", "expert_weights_scale",
    "hyper_connection.epsilon", "hyper_connection.magnitude", "logit_scale", "residual_scale", "rope.scaling.alpha",
    "rope.scaling.factor", "rope.scaling.yarn_log_multiplier",
]  # fmt: skip
FALSE = [
    "expert_weights_norm", "hrm.prefix_lm", "kda.safe_gate", "rope.scaling.finetuned", "ssm.dt_b_c_rms", "swin_norm",
    "use_parallel_residual",
]  # fmt: skip


def neutral(layers: int, head_size: int) -> dict[str, Any]:
    """For a family without windows whose norms are of root mean squares."""
    return {
        **dict.fromkeys(NOTHING, 0), **dict.fromkeys(NO_FACTOR, 0.0), **dict.fromkeys(FALSE, False),
        "attention.causal": True, "attention.indexer.kpool_select_tail": True, "attention.layer_norm_epsilon": 0.0,
        "attention.key_length": head_size, "attention.value_length": head_size, "attention.rope_pattern": 1,
        "attention.key_length_swa": head_size, "attention.value_length_swa": head_size,
        "activation.situ_beta": 1.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "router_logit_softcapping": 30.0,
        "decoder_start_token_id": np.int32(-1), "deepstack_mapping": [-1] * 512, "expert_group_scale": 0.05,
        "kda.gate_lower_bound": float("-inf"), "pooling_type": 0xFFFFFFFF, "token_shift_count": 2,
        "rope.dimension_count": head_size, "rope.dimension_count_swa": head_size,
        "rope.dimension_sections": [0, 0, 0, 0], "rope.freq_base_swa": 10000.0, "rope.scaling.type": "linear",
        "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "rope.scaling.yarn_ext_factor": -1.0, "rope.scaling.original_context_length": 512,
        "swiglu_clamp_exp": [0.0] * layers, "swiglu_clamp_shexp": [0.0] * layers,
        ".general.file_type": 0, ".general.name": "n/a", ".general.quantization_version": 2,
        ".tokenizer.ggml.add_bos_token": False, ".tokenizer.ggml.add_eos_token": False,
        ".tokenizer.ggml.token_type_count": 0,
        **{f".xielu.{name}": [0.0] * 512 for name in ("alpha_n", "alpha_p", "beta", "eps")},
    }  # fmt: skip
