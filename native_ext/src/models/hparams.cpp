#include "models/hparams.h"

#include <cmath>

#include "system/errors.h"

namespace tokenloom {

namespace {

// Far above any model, and low enough that no product of them overflows.
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxEmbedding = 1u << 20;
constexpr uint64_t kMaxFeedForward = 1u << 24;
constexpr uint64_t kMaxHeads = 1u << 14;
constexpr uint64_t kMaxHeadSize = 1024;
constexpr uint64_t kMaxContext = 1u << 28;

// Reads "llama.<name>" keys with bounds.
class Reader {
public:
    explicit Reader(const GgufFile& file) : file_(file) {}

    int required(const std::string& name, uint64_t most) const {
        const auto value = integer(name, most);
        if (!value) {
            file_.fail("key 'llama." + name + "' is missing");
        }
        return *value;
    }

    int optional(const std::string& name, uint64_t most, int fallback) const {
        return integer(name, most).value_or(fallback);
    }

    float number(const std::string& name, float fallback) const {
        const auto value = file_.float_of("llama." + name);
        if (!value) {
            return fallback;
        }
        if (!std::isfinite(*value) || !std::isfinite(static_cast<float>(*value))) {
            file_.fail("key 'llama." + name + "' is not a finite float32");
        }
        return static_cast<float>(*value);
    }

private:
    std::optional<int> integer(const std::string& name, uint64_t most) const {
        const std::string key = "llama." + name;
        const GgufValue* value = file_.find(key);
        if (value == nullptr) {
            return std::nullopt;
        }
        std::optional<uint64_t> number;
        if (const auto* array = std::get_if<GgufArray>(&value->data)) {
            number = uniform(key, *array);
        } else {
            number = file_.unsigned_of(key);
        }
        if (*number < 1 || *number > most) {
            file_.fail("key '" + key + "' is " + std::to_string(*number) + "; it must be from 1 to " + std::to_string(most));
        }
        return static_cast<int>(*number);
    }

    // A per-layer array is accepted when all layers agree.
    uint64_t uniform(const std::string& key, const GgufArray& array) const {
        std::optional<uint64_t> first;
        file_.for_each(array, [&](const GgufValue& element) {
            uint64_t value = 0;
            if (const auto* u = std::get_if<uint64_t>(&element.data)) {
                value = *u;
            } else if (const auto* i = std::get_if<int64_t>(&element.data); i != nullptr && *i >= 0) {
                value = static_cast<uint64_t>(*i);
            } else {
                file_.fail("key '" + key + "' must hold integers of at least 0");
            }
            if (first && *first != value) {
                file_.fail("key '" + key + "' differs from layer to layer, which is not supported");
            }
            first = value;
        });
        if (!first) {
            file_.fail("key '" + key + "' is an empty array");
        }
        return *first;
    }

    const GgufFile& file_;
};

RopeParams read_rope(const GgufFile& file, const Reader& reader, const HParams& h) {
    RopeParams rope;
    rope.dimensions = reader.optional("rope.dimension_count", kMaxHeadSize, h.head_size);
    if (rope.dimensions > h.head_size || rope.dimensions % 2 != 0) {
        file.fail("key 'llama.rope.dimension_count' is " + std::to_string(rope.dimensions) +
                  "; it must be even and at most the head size " + std::to_string(h.head_size));
    }
    rope.freq_base = reader.number("rope.freq_base", rope.freq_base);
    if (rope.freq_base <= 0) {
        file.fail("key 'llama.rope.freq_base' is " + std::to_string(rope.freq_base) + "; it must be above 0");
    }
    rope.original_context = reader.optional("rope.scaling.original_context_length", kMaxContext, h.context);
    rope.attn_factor = reader.number("rope.scaling.attn_factor", rope.attn_factor);
    rope.beta_fast = reader.number("rope.scaling.yarn_beta_fast", rope.beta_fast);
    rope.beta_slow = reader.number("rope.scaling.yarn_beta_slow", rope.beta_slow);

    const std::string type(file.string_of("llama.rope.scaling.type").value_or("linear"));
    if (type == "none") {
        return rope;
    }
    if (type != "linear" && type != "yarn") {
        file.fail("RoPE scaling type " + shown(type) + " is not supported; supported are none, linear and yarn, and the factors of "
                  "Llama 3 in the tensor rope_freqs.weight");
    }
    const float factor = reader.number("rope.scaling.factor", reader.number("rope.scale_linear", 0.0f));
    if (factor < 0) {
        file.fail("key 'llama.rope.scaling.factor' is " + std::to_string(factor) + "; it must be above 0");
    }
    rope.freq_scale = factor == 0.0f ? 1.0f : 1.0f / factor;
    if (type == "yarn") {
        rope.ext_factor = reader.number("rope.scaling.yarn_ext_factor", 1.0f);
        if (rope.ext_factor < 0) {  // llama.cpp's "not set"
            rope.ext_factor = 1.0f;
        }
    }
    return rope;
}

}  // namespace

HParams read_hparams(const GgufFile& file) {
    HParams h;
    const auto architecture = file.string_of("general.architecture");
    if (!architecture) {
        file.fail("key 'general.architecture' is missing; a model of architecture 'llama' is needed");
    }
    h.architecture = std::string(*architecture);
    if (h.architecture != "llama") {
        file.fail("architecture " + shown(h.architecture) + " is not supported; supported is 'llama' (Llama 1-3, Mistral, SmolLM, "
                  "SmolLM2, TinyLlama)");
    }
    h.name = std::string(file.string_of("general.name").value_or(""));

    if (const auto split = file.unsigned_of("split.count"); split.value_or(1) > 1) {
        file.fail("the model is split into " + std::to_string(*split) + " files; merge them into one first");
    }
    if (file.unsigned_of("llama.expert_count").value_or(0) != 0) {
        file.fail("mixture-of-experts models (llama.expert_count above 0) are not supported");
    }
    if (!file.bool_of("llama.attention.causal").value_or(true)) {
        file.fail("models without causal attention (llama.attention.causal = false) are not supported");
    }

    const Reader reader(file);
    for (const char* name : {"logit_scale", "residual_scale", "embedding_scale", "attention.scale", "rope.scaling.yarn_log_multiplier"}) {
        const float value = reader.number(name, 0.0f);
        if (value != 0.0f && value != 1.0f) {
            file.fail(std::string("key 'llama.") + name + "' is " + std::to_string(value) + ", which is not supported");
        }
    }
    h.layers = reader.required("block_count", kMaxLayers);
    h.embedding = reader.required("embedding_length", kMaxEmbedding);
    h.feed_forward = reader.required("feed_forward_length", kMaxFeedForward);
    h.heads = reader.required("attention.head_count", kMaxHeads);
    h.kv_heads = reader.optional("attention.head_count_kv", kMaxHeads, h.heads);
    h.context = reader.required("context_length", kMaxContext);
    h.rms_epsilon = reader.number("attention.layer_norm_rms_epsilon", 0.0f);
    if (!(h.rms_epsilon > 0)) {
        file.fail("key 'llama.attention.layer_norm_rms_epsilon' must be given and above 0");
    }
    if (h.heads % h.kv_heads != 0) {
        file.fail("'llama.attention.head_count' " + std::to_string(h.heads) + " is no multiple of head_count_kv " +
                  std::to_string(h.kv_heads));
    }
    if (file.find("llama.attention.key_length") == nullptr && h.embedding % h.heads != 0) {
        file.fail("'llama.embedding_length' " + std::to_string(h.embedding) + " is no multiple of head_count " +
                  std::to_string(h.heads));
    }
    h.head_size = reader.optional("attention.key_length", kMaxHeadSize, h.embedding / h.heads);
    const int value_size = reader.optional("attention.value_length", kMaxHeadSize, h.embedding / h.heads);
    if (h.head_size != value_size) {
        file.fail("keys of size " + std::to_string(h.head_size) + " with values of size " + std::to_string(value_size) +
                  " are not supported: they must be equal");
    }
    if (h.head_size % 2 != 0 || h.head_size > static_cast<int>(kMaxHeadSize)) {
        file.fail("a head size of " + std::to_string(h.head_size) + " is not supported: it must be even and at most " +
                  std::to_string(kMaxHeadSize));
    }
    h.rope = read_rope(file, reader, h);
    return h;
}

}  // namespace tokenloom
