// The numbers of a llama-architecture model, read from the file's key-values and checked.
//
// Only architecture `llama` is served (Llama 1-3, Mistral, SmolLM and SmolLM2, TinyLlama, and others that were converted
// to it). A file that asks for mathematics this engine does not do (experts, longrope, per-layer head counts, non-causal
// attention) is refused rather than run wrongly. What is missing takes the default that llama.cpp takes.

#pragma once

#include <cstdint>
#include <string>

#include "gguf/gguf.h"
#include "attention/rope_params.h"

namespace tokenloom {

struct HParams {
    std::string architecture;
    std::string name;           // general.name, may be empty
    int layers = 0;
    int embedding = 0;
    int feed_forward = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_size = 0;
    int context = 0;            // tokens
    float rms_epsilon = 0.0f;
    RopeParams rope;
};

// Throws ModelError.
HParams read_hparams(const GgufFile& file);

}  // namespace tokenloom
