// Model: which tensors a layer has, by the description and by what is there.

#include "models/model.h"

namespace tokenloom {

void Model::read_layers() {
    const Description& d = description_;
    for (int i = 0; i < d.layers(); ++i) {
        const std::string block = "blk." + std::to_string(i) + ".";
        Layer layer;
        if (d.norm_before) {
            layer.attention_norm = norm(block + "attn_norm", true);
        }
        read_attention(block, d.attention[static_cast<size_t>(i)], layer);
        if (d.norm_after) {
            layer.attention_after = norm(block + "post_attention_norm", true);
        }
        // Rows that both read are normalized once, and so they are where the feed-forward has no norm of its own.
        if (d.norm_before && !d.parallel) {
            layer.ffn_norm = norm(block + d.feed_forward_norm, !d.feed_forward_norm_optional);
        }
        if (d.has_experts(i)) {
            read_experts(block, layer);
        } else {
            read_feed_forward(block, d.feed_forward[static_cast<size_t>(i)], layer);
        }
        if (d.norm_after) {
            layer.ffn_after = norm(block + "post_ffw_norm", true);
        }
        layers_.push_back(std::move(layer));
    }
}

void Model::read_attention(const std::string& block, const LayerAttention& attention, Layer& layer) {
    const Description& d = description_;
    const int64_t queries = int64_t{attention.heads} * attention.key_size;
    const int64_t keys = int64_t{attention.kv_heads} * attention.key_size;
    const int64_t values = int64_t{attention.kv_heads} * attention.value_size;
    if (has(block + "attn_qkv.weight")) {
        layer.query_key_value = matrix(block + "attn_qkv", d.embedding, queries + keys + values);
        if (layer.query_key_value.bias == nullptr && has(block + "attn_q.bias")) {
            layer.query_key_value.bias = joined_bias(block, {{"attn_q", queries}, {"attn_k", keys}, {"attn_v", values}});
        }
    } else {
        layer.query = matrix(block + "attn_q", d.embedding, queries);
        layer.key = matrix(block + "attn_k", d.embedding, keys);
        layer.value = matrix(block + "attn_v", d.embedding, values);
    }
    layer.attention_out = matrix(block + "attn_output", int64_t{attention.heads} * attention.value_size, d.embedding);
    layer.query_norm = head_norm(block + "attn_q_norm", attention.heads, attention.key_size);
    layer.key_norm = head_norm(block + "attn_k_norm", attention.kv_heads, attention.key_size);
    if (d.sinks) {
        layer.sinks = vector(block + "attn_sinks.weight", {attention.heads}, true);
    }
}

// Biases of the parts of a matrix, which the file has one by one.
ggml_tensor* Model::joined_bias(const std::string& block, const std::vector<std::pair<std::string, int64_t>>& parts) {
    int64_t size = 0;
    for (const auto& [name, own] : parts) {
        size += own;
    }
    ggml_tensor* whole = ggml_new_tensor_1d(vectors_.get(), GGML_TYPE_F32, size);
    size = 0;
    for (const auto& [name, own] : parts) {
        const GgufTensor& source = require(block + name + ".bias");
        check_vector(source, {own});
        pending_.emplace_back(ggml_view_1d(vectors_.get(), whole, own, static_cast<size_t>(size) * sizeof(float)), &source);
        used_.insert(source.name);
        size += own;
    }
    return whole;
}

// llama.cpp scales the feed-forward's products with their biases.
Matrix Model::feed_forward_matrix(const std::string& name, int64_t in, int64_t out) {
    Matrix m = matrix(name, in, out);
    m.bias_first = true;
    return m;
}

ggml_tensor* Model::head_norm(const std::string& name, int heads, int size) {
    const Description& d = description_;
    if (d.head_norm == HeadNorm::none) {
        return nullptr;
    }
    const std::string weight = name + ".weight";
    if (d.head_norm == HeadNorm::row) {
        return vector(weight, {int64_t{heads} * size}, !d.head_norm_optional);
    }
    if (d.head_norm_kind == NormKind::layer) {
        return vector(weight, {size, heads}, !d.head_norm_optional);
    }
    return vector(weight, {size}, !d.head_norm_optional);
}

void Model::read_feed_forward(const std::string& block, int width, Layer& layer) {
    const Description& d = description_;
    if (d.gated && !d.fused_up) {
        layer.gate = feed_forward_matrix(block + "ffn_gate", d.embedding, width);
    }
    layer.up = feed_forward_matrix(block + "ffn_up", d.embedding, d.fused_up ? int64_t{2} * width : width);
    layer.down = feed_forward_matrix(block + "ffn_down", width, d.embedding);
}

void Model::read_experts(const std::string& block, Layer& layer) {
    const Description& d = description_;
    const Experts& e = d.experts;
    ExpertWeights& w = layer.experts;
    w.router = matrix(block + "ffn_gate_inp", d.embedding, e.count);
    w.choice_bias = vector(block + "exp_probs_b.bias", {e.count}, false);
    if (has(block + "ffn_gate_exps.weight")) {
        w.gate = stack(block + "ffn_gate_exps", d.embedding, e.feed_forward);
    }
    w.up = stack(block + "ffn_up_exps", d.embedding, e.feed_forward);
    w.down = stack(block + "ffn_down_exps", e.feed_forward, d.embedding);
    if (e.shared > 0) {
        w.shared_gate = matrix(block + "ffn_gate_shexp", d.embedding, e.shared);
        w.shared_up = matrix(block + "ffn_up_shexp", d.embedding, e.shared);
        w.shared_down = matrix(block + "ffn_down_shexp", e.shared, d.embedding);
        if (const GgufTensor* share = file_.find_tensor(block + "ffn_gate_inp_shexp.weight")) {
            check_shape(*share, {d.embedding});
            w.shared_share.weight = weight(*share);
        }
    }
}

// A tensor [in, out, experts], and a scale and biases of each expert.
std::vector<Matrix> Model::stack(const std::string& name, int64_t in, int64_t out) {
    const int64_t count = description_.experts.count;
    const GgufTensor& tensor = require(name + ".weight");
    check_shape(tensor, {in, out, count});
    ggml_tensor* scales = vector(name + ".scale", {count}, false);
    ggml_tensor* biases = vector(name + ".bias", {out, count}, false);
    std::vector<Matrix> all;
    for (int64_t i = 0; i < count; ++i) {
        Matrix m;
        m.weight = weight(tensor, i, count);
        if (scales != nullptr) {
            m.scale = ggml_view_1d(vectors_.get(), scales, 1, static_cast<size_t>(i) * sizeof(float));
        }
        if (biases != nullptr) {
            m.bias = ggml_view_1d(vectors_.get(), biases, out, static_cast<size_t>(i) * biases->nb[1]);
        }
        all.push_back(m);
    }
    return all;
}

}  // namespace tokenloom
