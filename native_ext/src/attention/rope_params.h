// How a model turns queries and keys by their positions.

#pragma once

namespace tokenloom {

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
};

}  // namespace tokenloom
