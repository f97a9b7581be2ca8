#include "models/families.h"

#include <cmath>

namespace tokenloom {

namespace {

using Head = Description::Head;
using Gating = Experts::Gating;
using Shared = ExpertsRow::Shared;

// The largest models divide scores by the square root of what a head's share of the embedding would be.
template <int layers>
void divide_by_share(const KeyReader&, Description& model) {
    if (model.layers() == layers) {
        for (LayerAttention& layer : model.attention) {
            layer.divisor = std::sqrt(static_cast<float>(model.embedding / layer.heads));
        }
    }
}

// Layers 4, 8, ... do not turn: files do not say so.
void turn_three_of_four(const KeyReader&, Description& model) {
    for (size_t i = 3; i < model.attention.size(); i += 4) {
        model.attention[i].rope = -1;
    }
}

// The small ones have neither windows nor layers that do not turn.
void windows_of_64_layers(const KeyReader&, Description& model) {
    if (model.layers() != 64) {
        for (LayerAttention& layer : model.attention) {
            layer.window = 0;
            layer.rope = 0;
        }
    }
}

void head_norms_of_64_layers(const KeyReader&, Description& model) {
    if (model.layers() < 64) {
        model.head_norm = HeadNorm::none;
    }
}

// NTK-aware scaling of the base, by a factor alpha.
void scale_base(const KeyReader& reader, Description& model) {
    const float alpha = reader.positive("rope.scaling.alpha", 0.0f);
    if (alpha > 0) {
        for (RopeKind& rope : model.ropes) {
            const float size = static_cast<float>(model.attention[0].key_size);
            rope.params.freq_base *= std::pow(alpha, size / (size - 2));
        }
    }
}

// Files from before there were keys for them.
void old_scales(const KeyReader& reader, Description& model) {
    model.embedding_scale = reader.positive("embedding_scale", 12.0f);
    model.residual_scale = reader.positive("residual_scale", 1.4f / std::sqrt(static_cast<float>(model.layers())));
    model.logit_scale = 1.0f / reader.positive("logit_scale", 256.0f / static_cast<float>(model.embedding));
}

void read_xielu(const KeyReader& reader, Description& model) {
    const int layers = model.layers();
    const auto p = reader.numbers_of_layers("xielu.alpha_p", layers);
    const auto n = reader.numbers_of_layers("xielu.alpha_n", layers);
    const auto beta = reader.numbers_of_layers("xielu.beta", layers);
    const auto epsilon = reader.numbers_of_layers("xielu.eps", layers);
    const auto softplus = [](float x) { return std::log1p(std::exp(x)); };
    for (size_t i = 0; i < p.size(); ++i) {
        if (epsilon[i] > 0) {
            reader.file().fail("key 'xielu.eps' is " + std::to_string(epsilon[i]) + "; it must be at most 0");
        }
        model.xielu.insert(model.xielu.end(), {softplus(p[i]), beta[i] + softplus(n[i]), beta[i], epsilon[i]});
    }
}

constexpr Family kFamilies[] = {
    {.architecture = "llama",
     .models = "Llama 1-3, Mistral, Mixtral, SmolLM, TinyLlama",
     .experts = {.may = true, .normalized = true}},
    {.architecture = "mistral3",
     .models = "Mistral Small 3, Ministral",
     .temperature = true,
     .says_yarn = true,
     .experts = {.may = true, .normalized = true}},
    {.architecture = "qwen2", .models = "Qwen 1.5-2.5", .order = RopeOrder::halves},
    {.architecture = "qwen2moe",
     .models = "Qwen 1.5 and 2 with experts",
     .order = RopeOrder::halves,
     .experts = {.may = true, .own_width = true, .shared = Shared::own_or_whole},
     .head = Head::own},
    {.architecture = "qwen3", .models = "Qwen 3", .order = RopeOrder::halves, .head_norm = HeadNorm::head},
    {.architecture = "qwen3moe",
     .models = "Qwen 3 with experts",
     .order = RopeOrder::halves,
     .head_norm = HeadNorm::head,
     .experts = {.may = true, .normalized = true, .own_width = true}},
    {.architecture = "phi3", .models = "Phi-3, Phi-4", .order = RopeOrder::halves, .fused_up = true},
    {.architecture = "gemma",
     .models = "Gemma",
     .order = RopeOrder::halves,
     .activation = Activation::gelu,
     .embedding_root = true,
     .head = Head::tied},
    {.architecture = "gemma2",
     .models = "Gemma 2",
     .order = RopeOrder::halves,
     .norm_after = true,
     .window_every = 2,
     .window = 4096,
     .attention_cap = 50.0f,
     .logit_cap = 30.0f,
     .activation = Activation::gelu,
     .embedding_root = true,
     .head = Head::tied,
     .adjust = divide_by_share<46>},
    {.architecture = "gemma3",
     .models = "Gemma 3",
     .order = RopeOrder::halves,
     .norm_after = true,
     .head_norm = HeadNorm::head,
     .window_every = 6,
     .window_rope = WindowRope::own_base,
     .logit_cap = -1.0f,
     .activation = Activation::gelu,
     .embedding_root = true,
     .adjust = divide_by_share<62>},
    {.architecture = "granite", .models = "Granite", .rope_stays = false, .scales = true, .logit_scale = LogitScale::divides},
    {.architecture = "granitemoe",
     .models = "Granite with experts",
     .experts = {.may = true, .normalized = true, .shared = Shared::own},
     .scales = true,
     .logit_scale = LogitScale::divides},
    {.architecture = "smollm3", .models = "SmolLM3", .adjust = turn_three_of_four},
    {.architecture = "olmo2",
     .models = "OLMo 2 and 3",
     .order = RopeOrder::halves,
     .norm_before = false,
     .norm_after = true,
     .head_norm = HeadNorm::row,
     .window_every = 4,
     .window_rope = WindowRope::plain,
     .head = Head::own},
    {.architecture = "olmoe",
     .models = "OLMoE",
     .order = RopeOrder::halves,
     .head_norm = HeadNorm::row,
     .experts = {.may = true},
     .head = Head::own},
    {.architecture = "exaone4",
     .models = "EXAONE 4",
     .order = RopeOrder::halves,
     .norm_before = false,
     .norm_after = true,
     .head_norm = HeadNorm::head,
     .window_every = 4,
     .window = 4096,
     .window_rope = WindowRope::only,
     .adjust = windows_of_64_layers},
    {.architecture = "glm4", .models = "GLM-4", .norm_after = true, .fused_up = true},
    {.architecture = "glm4moe",
     .models = "GLM-4.5 and 4.6",
     .order = RopeOrder::halves,
     .feed_forward_norm = "post_attention_norm",
     .head_norm = HeadNorm::head,
     .head_norm_optional = true,
     .experts = {.may = true, .gating = Gating::sigmoid, .own_width = true, .says_how = true, .some_dense = true, .shared = Shared::count}},
    {.architecture = "gpt-oss",
     .models = "gpt-oss",
     .order = RopeOrder::halves,
     .feed_forward_norm = "post_attention_norm",
     .window_every = 2,
     .window_required = true,
     .sinks = true,
     .activation = Activation::clamped,
     .experts = {.may = true, .gating = Gating::softmax_of_chosen, .own_width = true},
     .head = Head::own},
    {.architecture = "command-r",
     .models = "Command R",
     .norm = NormKind::layer,
     .parallel = true,
     .head_norm = HeadNorm::head,
     .head_norm_kind = NormKind::layer,
     .logit_scale = LogitScale::multiplies,
     .head = Head::tied,
     .adjust = head_norms_of_64_layers},
    {.architecture = "cohere2",
     .models = "Command R7B, Command A",
     .norm = NormKind::layer,
     .parallel = true,
     .window_every = 4,
     .window_required = true,
     .window_rope = WindowRope::only,
     .logit_scale = LogitScale::multiplies,
     .head = Head::tied},
    {.architecture = "starcoder2",
     .models = "StarCoder 2",
     .order = RopeOrder::halves,
     .norm = NormKind::layer,
     .activation = Activation::gelu,
     .gated = false},
    {.architecture = "stablelm",
     .models = "Stable LM",
     .order = RopeOrder::halves,
     .norm = NormKind::layer,
     .feed_forward_norm_optional = true,
     .head_norm = HeadNorm::head,
     .head_norm_optional = true,
     .head_norm_kind = NormKind::layer,
     .head = Head::own},
    {.architecture = "internlm2", .models = "InternLM 2 and 3", .head = Head::own},
    {.architecture = "minicpm", .models = "MiniCPM", .scales = true, .adjust = old_scales},
    {.architecture = "ernie4_5", .models = "ERNIE 4.5"},
    {.architecture = "ernie4_5-moe",
     .models = "ERNIE 4.5 with experts",
     .experts = {.may = true, .normalized = true, .own_width = true, .some_dense = true, .shared = Shared::own}},
    {.architecture = "hunyuan-dense",
     .models = "Hunyuan",
     .order = RopeOrder::halves,
     .head_norm = HeadNorm::head,
     .head_norm_after_turn = true,
     .adjust = scale_base},
    {.architecture = "hunyuan-moe",
     .models = "Hunyuan with experts",
     .order = RopeOrder::halves,
     .head_norm = HeadNorm::head,
     .head_norm_after_turn = true,
     .experts = {.may = true, .normalized = true, .shared = Shared::own_or_whole}},
    {.architecture = "seed_oss", .models = "Seed-OSS", .order = RopeOrder::halves, .feed_forward_norm = "post_attention_norm"},
    {.architecture = "arcee", .models = "Arcee AFM", .activation = Activation::relu_squared, .gated = false},
    {.architecture = "apertus",
     .models = "Apertus",
     .order = RopeOrder::halves,
     .head_norm = HeadNorm::head,
     .activation = Activation::xielu,
     .gated = false,
     .head = Head::own,
     .adjust = read_xielu},
};

}  // namespace

std::span<const Family> all_families() { return kFamilies; }

const Family& family_of(const GgufFile& file) {
    const auto architecture = file.string_of("general.architecture");
    std::string supported;
    for (const Family& family : kFamilies) {
        if (architecture && *architecture == family.architecture) {
            return family;
        }
        supported += supported.empty() ? "" : ", ";
        supported += shown(family.architecture) + " (" + family.models + ")";
    }
    if (!architecture) {
        file.fail("key 'general.architecture' is missing; supported are " + supported);
    }
    file.fail("architecture " + shown(*architecture) + " is not supported; supported are " + supported);
}

}  // namespace tokenloom
