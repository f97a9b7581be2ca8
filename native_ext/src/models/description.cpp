#include "models/description.h"

#include <cmath>

#include "models/families.h"
#include "models/key_reader.h"

namespace tokenloom {

namespace {

RopeKind read_rope(const KeyReader& reader, const Family& family, const LayerAttention& layer, int context) {
    const GgufFile& file = reader.file();
    RopeKind rope;
    rope.order = family.order;
    RopeParams& p = rope.params;
    p.dimensions = reader.optional("rope.dimension_count", kMostHeadSize, layer.key_size);
    if (p.dimensions > layer.key_size || p.dimensions % 2 != 0) {
        reader.fail("rope.dimension_count", std::to_string(p.dimensions),
                    "it must be even and at most the head size " + std::to_string(layer.key_size));
    }
    p.freq_base = reader.number("rope.freq_base", p.freq_base);
    if (p.freq_base <= 0) {
        reader.fail("rope.freq_base", std::to_string(p.freq_base), "it must be above 0");
    }
    const int original = reader.or_zero("rope.scaling.original_context_length", kMostContext);
    p.original_context = original == 0 ? context : original;
    p.attn_factor = reader.positive("rope.scaling.attn_factor", p.attn_factor);
    rope.factors = "rope_freqs.weight";

    const std::string type = reader.text("rope.scaling.type", "linear");
    if (type == "none") {
        return rope;
    }
    if (type != "linear" && type != "yarn" && type != "longrope") {
        file.fail("RoPE scaling type " + shown(type) + " is not supported; supported are none, linear, yarn and longrope, and the factors "
                  "of Llama 3 in the tensor rope_freqs.weight");
    }
    const float factor = reader.positive("rope.scaling.factor", reader.positive("rope.scale_linear", 1.0f));
    p.freq_scale = 1.0f / factor;
    if (type == "longrope" || file.find_tensor("rope_factors_long.weight") != nullptr) {
        // By what the model is served with, never by how long a session has become: its bits would change.
        rope.factors = "rope_factors_long.weight";
        rope.other_factors = "rope_factors_short.weight";
        if (context <= p.original_context) {
            std::swap(rope.factors, rope.other_factors);
        }
        rope.factors_required = true;
    }
    if (type == "yarn") {
        p.ext_factor = 1.0f;
        p.beta_fast = reader.positive("rope.scaling.yarn_beta_fast", p.beta_fast);
        p.beta_slow = reader.positive("rope.scaling.yarn_beta_slow", p.beta_slow);
        const float ext = reader.number("rope.scaling.yarn_ext_factor", 1.0f);
        p.ext_factor = ext < 0 ? 1.0f : ext;  // llama.cpp's "not set"
        p.log_multiplier = family.says_yarn ? reader.number("rope.scaling.yarn_log_multiplier", 0.0f) : 0.0f;
    }
    return rope;
}

// Which layers have a window, and how those turn.
void read_windows(const KeyReader& reader, const Family& family, Description& model) {
    if (family.window_every == 0) {
        return;
    }
    int window = reader.or_zero("attention.sliding_window", kMostContext);
    if (window == 0 && family.window_required) {
        reader.fail("attention.sliding_window", reader.has("attention.sliding_window") ? "0" : "missing",
                    "it must be from 1 to " + std::to_string(kMostContext));
    }
    window = window == 0 ? family.window : window;
    if (window == 0) {
        return;
    }
    const auto flags = reader.flags("attention.sliding_window_pattern");
    const int every = flags || !reader.has("attention.sliding_window_pattern") ? family.window_every
                                                                               : reader.or_zero("attention.sliding_window_pattern", kMostLayers);
    for (size_t i = 0; i < model.attention.size(); ++i) {
        const bool own = flags ? i < flags->size() && (*flags)[i] : every == 0 || static_cast<int>(i) % every < every - 1;
        model.attention[i].window = own ? window : 0;
    }
    RopeKind rope = model.ropes[0];
    if (family.window_rope == WindowRope::own_base) {
        rope.params.freq_base = reader.positive("rope.freq_base_swa", 10000.0f);
        rope.params.freq_scale = 1.0f;
    } else if (family.window_rope == WindowRope::plain) {
        const RopeParams plain;
        rope.params.freq_scale = plain.freq_scale;
        rope.params.ext_factor = plain.ext_factor;
        rope.params.attn_factor = plain.attn_factor;
    } else if (family.window_rope == WindowRope::only) {
        for (LayerAttention& layer : model.attention) {
            layer.rope = layer.window > 0 ? 0 : -1;
        }
        return;
    } else {
        return;
    }
    model.ropes.push_back(rope);
    for (LayerAttention& layer : model.attention) {
        layer.rope = layer.window > 0 ? 1 : 0;
    }
}

// Refuses scales that are there and that the family does not have.
void read_scales(const KeyReader& reader, const Family& family, Description& model) {
    const auto refuse = [&](const char* name) {
        const float value = reader.number(name, 0.0f);
        if (value != 0.0f && value != 1.0f) {
            reader.file().fail("key '" + reader.key(name) + "' is " + std::to_string(value) + ", which is not supported");
        }
    };
    if (family.embedding_root) {
        model.embedding_scale = std::sqrt(static_cast<float>(model.embedding));
    }
    if (family.scales) {
        model.embedding_scale = reader.positive("embedding_scale", 1.0f);
        model.residual_scale = reader.positive("residual_scale", 1.0f);
        const float attention = reader.positive("attention.scale", 0.0f);
        for (LayerAttention& layer : model.attention) {
            layer.divisor = attention == 0.0f ? layer.divisor : 1.0f / attention;
        }
    } else {
        refuse("embedding_scale");
        refuse("residual_scale");
        refuse("attention.scale");
    }
    if (family.logit_scale != LogitScale::none) {
        const float scale = reader.positive("logit_scale", 1.0f);
        model.logit_scale = family.logit_scale == LogitScale::multiplies ? scale : 1.0f / scale;
    } else if (!family.scales) {
        refuse("logit_scale");
    }
    if (!family.says_yarn) {
        refuse("rope.scaling.yarn_log_multiplier");
    }
    const auto cap = [&](const char* name, float without) {
        return without == 0.0f ? 0.0f : reader.positive(name, without < 0 ? 0.0f : without);
    };
    model.attention_cap = cap("attn_logit_softcapping", family.attention_cap);
    model.logit_cap = cap("final_logit_softcapping", family.logit_cap);
    if (family.temperature) {
        model.temperature = reader.number("attention.temperature_scale", 0.0f);
        model.temperature_length = model.ropes[0].params.original_context;
    }
}

void read_experts(const KeyReader& reader, const Family& family, Description& model) {
    Experts& e = model.experts;
    e.count = reader.or_zero("expert_count", kMostExperts);
    const ExpertsRow& row = family.experts;
    if (e.count == 0 || (e.count == 1 && !row.may)) {
        e.count = 0;
        return;
    }
    if (!row.may) {
        reader.fail("expert_count", std::to_string(e.count), "models of architecture '" + model.architecture + "' have no experts");
    }
    e.used = reader.required("expert_used_count", static_cast<uint64_t>(e.count));
    const int whole = reader.or_zero("feed_forward_length", kMostFeedForward);
    const int width = reader.or_zero("expert_feed_forward_length", kMostFeedForward);
    e.feed_forward = !row.own_width ? whole : width > 0 ? width : whole / e.used;
    if (e.feed_forward == 0) {
        reader.fail(row.own_width ? "expert_feed_forward_length" : "feed_forward_length", "missing or 0",
                    "it must be from 1 to " + std::to_string(kMostFeedForward));
    }
    e.gating = row.gating;
    e.normalized = row.normalized;
    if (row.says_how) {
        const int gating = reader.or_zero("expert_gating_func", 3);
        e.gating = gating == 0 ? row.gating : static_cast<Experts::Gating>(gating - 1);
        e.normalized = reader.flag("expert_weights_norm", row.normalized);
        e.scale = reader.positive("expert_weights_scale", 1.0f);
    }
    e.groups = std::max(1, reader.or_zero("expert_group_count", static_cast<uint64_t>(e.count)));
    e.groups_used = std::max(1, reader.or_zero("expert_group_used_count", static_cast<uint64_t>(e.groups)));
    if (e.count % e.groups != 0 || (e.groups > 1 && e.count / e.groups * e.groups_used < e.used)) {
        reader.fail("expert_group_count", std::to_string(e.groups),
                    "it must divide the " + std::to_string(e.count) + " experts into groups of which " + std::to_string(e.groups_used) +
                        " hold the " + std::to_string(e.used) + " that a row uses");
    }
    const int shared = reader.or_zero("expert_shared_feed_forward_length", kMostFeedForward);
    switch (row.shared) {
        case ExpertsRow::Shared::none: break;
        case ExpertsRow::Shared::own: e.shared = shared; break;
        case ExpertsRow::Shared::own_or_whole: e.shared = shared > 0 ? shared : whole; break;
        case ExpertsRow::Shared::count: e.shared = reader.or_zero("expert_shared_count", 64) * e.feed_forward; break;
    }
    const int dense = row.some_dense ? reader.or_zero("leading_dense_block_count", kMostLayers) : 0;
    for (size_t i = 0; i < model.feed_forward.size(); ++i) {
        model.feed_forward[i] = static_cast<int>(i) < dense ? model.feed_forward[i] : 0;
    }
}

void read_attention(const KeyReader& reader, const Family& family, int layers, Description& model) {
    const GgufFile& file = reader.file();
    const auto heads = reader.by_layer("attention.head_count", layers, 1, kMostHeads, std::nullopt);
    const auto kv_heads = reader.has("attention.head_count_kv") ? reader.by_layer("attention.head_count_kv", layers, 1, kMostHeads, 1) : heads;
    for (int i = 0; i < layers; ++i) {
        LayerAttention layer;
        layer.heads = heads[static_cast<size_t>(i)];
        layer.kv_heads = kv_heads[static_cast<size_t>(i)];
        layer.cells = i;
        if (layer.heads % layer.kv_heads != 0) {
            file.fail("'" + reader.key("attention.head_count") + "' " + std::to_string(layer.heads) + " is no multiple of head_count_kv " +
                      std::to_string(layer.kv_heads));
        }
        if (!reader.has("attention.key_length") && model.embedding % layer.heads != 0) {
            file.fail("'" + reader.key("embedding_length") + "' " + std::to_string(model.embedding) + " is no multiple of head_count " +
                      std::to_string(layer.heads));
        }
        layer.key_size = reader.optional("attention.key_length", kMostHeadSize, model.embedding / layer.heads);
        layer.value_size = reader.optional("attention.value_length", kMostHeadSize, model.embedding / layer.heads);
        for (const int size : {layer.key_size, layer.value_size}) {
            if (size % 2 != 0 || size > static_cast<int>(kMostHeadSize)) {
                file.fail("a head size of " + std::to_string(size) + " is not supported: it must be even and at most " +
                          std::to_string(kMostHeadSize));
            }
        }
        layer.divisor = std::sqrt(static_cast<float>(layer.key_size));
        model.attention.push_back(layer);
    }
    model.ropes.push_back(read_rope(reader, family, model.attention[0], model.context));
    if (!family.rope_stays && !reader.flag("rope.scaling.finetuned", true)) {
        for (LayerAttention& layer : model.attention) {
            layer.rope = -1;
        }
    }
    read_windows(reader, family, model);
    model.head_norm = family.head_norm;
    model.head_norm_optional = family.head_norm_optional;
    model.head_norm_after_turn = family.head_norm_after_turn;
    model.head_norm_kind = family.head_norm_kind;
    model.sinks = family.sinks;
}

}  // namespace

Description read_description(const GgufFile& file) {
    const Family& family = family_of(file);
    const KeyReader reader(file, family.architecture);
    Description model;
    model.architecture = family.architecture;
    model.name = std::string(file.string_of("general.name").value_or(""));
    if (const auto split = file.unsigned_of("split.count"); split.value_or(1) > 1) {
        file.fail("the model is split into " + std::to_string(*split) + " files; merge them into one first");
    }
    if (!reader.flag("attention.causal", true)) {
        file.fail("models without causal attention (" + reader.key("attention.causal") + " = false) are not supported");
    }
    const int blocks = reader.required("block_count", kMostLayers);
    const int unused = reader.or_zero("nextn_predict_layers", kMostLayers);  // for speculation: in the file, but not run
    if (unused >= blocks) {
        reader.fail("nextn_predict_layers", std::to_string(unused), "it must be below block_count " + std::to_string(blocks));
    }
    const int layers = blocks - unused;
    model.embedding = reader.required("embedding_length", kMostEmbedding);
    model.context = reader.required("context_length", kMostContext);
    model.norm = family.norm;
    const char* epsilon = model.norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    model.epsilon = reader.number(epsilon, 0.0f);
    if (!(model.epsilon > 0)) {
        file.fail("key '" + reader.key(epsilon) + "' must be given and above 0");
    }
    model.norm_before = family.norm_before;
    model.norm_after = family.norm_after;
    model.parallel = family.parallel;
    model.feed_forward_norm = family.feed_forward_norm;
    model.feed_forward_norm_optional = family.feed_forward_norm_optional;
    model.activation = family.activation;
    model.gated = family.gated;
    model.fused_up = family.fused_up;
    model.head = family.head;

    read_attention(reader, family, layers, model);
    // A mixture whose experts have a width of their own may say none for its dense layers.
    const bool mixture = family.experts.may && reader.or_zero("expert_count", kMostExperts) > 0;
    model.feed_forward = reader.by_layer("feed_forward_length", layers, mixture ? 0 : 1, kMostFeedForward,
                                         mixture ? std::optional<int>(0) : std::nullopt);
    read_scales(reader, family, model);
    read_experts(reader, family, model);
    if (family.adjust != nullptr) {
        family.adjust(reader, model);
    }
    return model;
}

}  // namespace tokenloom
