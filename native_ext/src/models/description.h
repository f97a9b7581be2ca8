// What a model computes: everything in which decoder models differ, as the forward reads it. Filled from the family's row
// (families.h) and the file's key-values, and checked. Nothing behind it knows a family's name.

#pragma once

#include <string>
#include <vector>

#include "attention/rope_params.h"
#include "gguf/gguf.h"

namespace tokenloom {

enum class NormKind { rms, layer };

// Of queries and keys: none, of each head alone, or of a row as a whole.
enum class HeadNorm { none, head, row };

enum class Activation { silu, gelu, erf_gelu, relu_squared, clamped, xielu };

// Which layers see a window of positions only.
struct LayerAttention {
    int heads = 0;
    int kv_heads = 0;
    int key_size = 0;
    int value_size = 0;
    int window = 0;        // positions that a query sees, its own included; 0: all
    int rope = 0;          // which of Description::ropes; -1: queries and keys are not turned
    float divisor = 0.0f;  // of scores
    int cells = 0;         // the layer whose cells it reads: its own, or one before, and then it stores none
};

struct RopeKind {
    RopeParams params;
    RopeOrder order = RopeOrder::neighbours;
    // Tensor with divisors of the frequencies, and whether there must be one; empty for none.
    std::string factors;
    bool factors_required = false;
    std::string other_factors;  // of longrope: those that are not used
};

// How rows choose experts, and what becomes of their outputs.
struct Experts {
    enum class Gating { softmax, sigmoid, softmax_of_chosen };

    int count = 0;
    int used = 0;               // by each row
    int feed_forward = 0;       // of each
    Gating gating = Gating::softmax;
    bool normalized = false;    // the chosen ones' weights are divided by their sum
    float scale = 1.0f;         // of the weights
    int groups = 1;             // of experts, of which a row first chooses
    int groups_used = 1;
    int shared = 0;             // width of the expert that all rows use; 0: none
};

struct Description {
    std::string architecture;
    std::string name;           // general.name, may be empty
    int embedding = 0;
    int context = 0;            // tokens
    int vocabulary = 0;         // filled from the embedding's shape
    float embedding_scale = 1.0f;

    std::vector<LayerAttention> attention;   // by layer
    std::vector<int> feed_forward;           // by layer; of a layer with experts 0
    std::vector<RopeKind> ropes;
    Experts experts;

    NormKind norm = NormKind::rms;
    float epsilon = 0.0f;
    bool norm_before = true;    // attention and feed-forward read normalized rows
    bool norm_after = false;    // what they give is normalized before it is added
    bool parallel = false;      // both read the same normalized rows, and are added to what was before either
    std::string feed_forward_norm = "ffn_norm";  // the tensor's name
    bool feed_forward_norm_optional = false;     // without it, the feed-forward reads what attention reads

    HeadNorm head_norm = HeadNorm::none;
    bool head_norm_optional = false;
    bool head_norm_after_turn = false;
    NormKind head_norm_kind = NormKind::rms;
    float attention_cap = 0.0f; // 0: none
    bool sinks = false;
    // Queries at position p are multiplied by 1 + temperature * ln(1 + floor(p / temperature_length)).
    float temperature = 0.0f;
    int temperature_length = 1;

    Activation activation = Activation::silu;
    bool gated = true;
    bool fused_up = false;      // ffn_up holds gate and up, one below the other
    std::vector<float> xielu;   // {p, n, beta, epsilon} of each layer

    float residual_scale = 1.0f;
    float logit_scale = 1.0f;
    float logit_cap = 0.0f;     // 0: none
    enum class Head { either, own, tied } head = Head::either;  // whether there is an output.weight

    int layers() const { return static_cast<int>(attention.size()); }
    bool has_experts(int layer) const { return feed_forward[static_cast<size_t>(layer)] == 0; }
};

// Throws ModelError.
Description read_description(const GgufFile& file);

}  // namespace tokenloom
