// How a model turns queries and keys by their positions.

#pragma once

namespace tokenloom {

// Which dimensions turn together: 0 and 1, 2 and 3, ...; or i and i + half of those turned (GPT-NeoX).
enum class RopeOrder { neighbours, halves };

// The arguments of ggml_rope_ext, as llama.cpp derives them from the file.
struct RopeParams {
    int dimensions = 0;         // how many of a head's dimensions are rotated
    int original_context = 0;   // tokens the model was trained with before scaling
    float freq_base = 10000.0f;
    float freq_scale = 1.0f;    // 1 / the file's scaling factor
    float ext_factor = 0.0f;    // 1 for yarn
    float attn_factor = 1.0f;
    float beta_fast = 32.0f;
    float beta_slow = 1.0f;
    float log_multiplier = 0.0f; // of yarn: the magnitude is divided by 1 + 0.1 * log_multiplier * ln(the scaling factor)
};

}  // namespace tokenloom
