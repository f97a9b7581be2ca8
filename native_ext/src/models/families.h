// The families of models that open: a row each, of what their files do not say.
//
// A new family whose parts exist is a new row, and its truth in tests/families. What files say themselves (sizes, scales, windows,
// biases and factors of matrices that are simply there) is read for all of them alike (description.cpp, model.cpp).

#pragma once

#include <span>
#include <string>

#include "models/description.h"
#include "models/key_reader.h"

namespace tokenloom {

// How the layers with a window turn queries and keys.
enum class WindowRope {
    same,      // as the others
    own_base,  // by rope.freq_base_swa, unscaled
    plain,     // by the model's base, without scaling and its magnitude
    only,      // and the others do not
};

// Where a logit_scale goes.
enum class LogitScale { none, multiplies, divides };

struct ExpertsRow {
    bool may = false;                // have any
    Experts::Gating gating = Experts::Gating::softmax;
    bool normalized = false;
    bool own_width = false;          // expert_feed_forward_length, instead of feed_forward_length
    bool says_how = false;           // expert_gating_func, expert_weights_norm and expert_weights_scale count
    bool some_dense = false;         // the first leading_dense_block_count layers have none
    // Width of the shared expert: none; expert_shared_feed_forward_length, if there is one; or else, feed_forward_length; or
    // expert_shared_count times an expert's.
    enum class Shared { none, own, own_or_whole, count } shared = Shared::none;
};

struct Family {
    const char* architecture;
    const char* models;  // for people

    RopeOrder order = RopeOrder::neighbours;
    bool temperature = false;           // attention.temperature_scale counts
    bool says_yarn = false;             // yarn_beta_fast and _slow, yarn_log_multiplier count
    bool rope_stays = true;             // otherwise rope.scaling.finetuned = false means none

    NormKind norm = NormKind::rms;
    bool norm_before = true;
    bool norm_after = false;
    bool parallel = false;
    const char* feed_forward_norm = "ffn_norm";
    bool feed_forward_norm_optional = false;
    HeadNorm head_norm = HeadNorm::none;
    bool head_norm_optional = false;
    bool head_norm_after_turn = false;
    NormKind head_norm_kind = NormKind::rms;

    int window_every = 0;               // layer i has a window if i % window_every < window_every - 1; 0: none has
    int window = 0;                     // unless attention.sliding_window says another; 0: then none has
    bool window_required = false;
    WindowRope window_rope = WindowRope::same;
    float attention_cap = 0.0f;         // unless attn_logit_softcapping says another; below 0: that counts, none without it
    float logit_cap = 0.0f;             // likewise final_logit_softcapping
    bool sinks = false;

    Activation activation = Activation::silu;
    bool gated = true;
    bool fused_up = false;
    ExpertsRow experts{};

    bool scales = false;                // embedding_scale, residual_scale, attention.scale count
    bool embedding_root = false;        // embeddings are multiplied by the square root of their size
    LogitScale logit_scale = LogitScale::none;
    Description::Head head = Description::Head::either;

    // What no other family does.
    void (*adjust)(const KeyReader& reader, Description& model) = nullptr;
};

std::span<const Family> all_families();

// Throws ModelError, which names what is supported.
const Family& family_of(const GgufFile& file);

}  // namespace tokenloom
