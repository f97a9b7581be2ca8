// A loaded model: its numbers, and its tensors as ggml tensors over the mapped file.
//
// Weights of types that our kernels multiply are packed at load (packed_matrix.h), and their pages of the mapping given
// back; an embedding that is also the output head is read from the packed form. Other weights stay in the mapping, in a plain CPU buffer
// (ggml_backend_cpu_buffer_from_ptr), where ggml_mul_mat computes one dot product per row and token whatever the batch. Vectors (norms, biases, RoPE factors) that are not float32 are
// converted into a small buffer of their own. Every tensor's shape and type is checked before it is touched, and a tensor
// the graph would not use is refused: it stands for mathematics that would silently be left out.
// The graph multiplies only through `Matrix`, a weight with its optional bias.

#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "gguf/gguf.h"
#include "models/description.h"
#include "gguf/mapped_file.h"
#include "packing/packed_matrix.h"
#include "packing/packing.h"

namespace tokenloom {

struct GgmlContextFree {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
using GgmlContext = std::unique_ptr<ggml_context, GgmlContextFree>;

struct GgmlBufferFree {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
using GgmlBuffer = std::unique_ptr<ggml_backend_buffer, GgmlBufferFree>;

// weight: [in, out] in ggml's order, its data in the mapping; packed: the same for our kernels, or null when ggml is to
// multiply it; scale: one float32 that its products are multiplied by, or null; bias: float32 [out] or null.
struct Matrix {
    ggml_tensor* weight = nullptr;
    const PackedMatrix* packed = nullptr;
    ggml_tensor* scale = nullptr;
    ggml_tensor* bias = nullptr;
    bool bias_first = false;  // added before the products are scaled
};

// A norm's weight, float32 [size], and its bias or null. Without weight: no norm.
struct NormWeights {
    ggml_tensor* weight = nullptr;
    ggml_tensor* bias = nullptr;
};

// Of a layer's experts, by their index; empty without.
struct ExpertWeights {
    Matrix router;                       // [embedding, experts]
    ggml_tensor* choice_bias = nullptr;  // float32 [experts], for choosing only
    std::vector<Matrix> gate, up, down;  // gate empty when there is none
    Matrix shared_gate, shared_up, shared_down;
    Matrix shared_share;                 // [embedding, 1]: the sigmoid of its product is the shared expert's weight; or none
};

// What the description says of the layer, as far as the file has it.
struct Layer {
    NormWeights attention_norm;
    Matrix query_key_value;              // or
    Matrix query, key, value;
    ggml_tensor* query_norm = nullptr;   // float32 [head], [heads of head] or [row]
    ggml_tensor* key_norm = nullptr;
    ggml_tensor* sinks = nullptr;        // float32 [heads]
    Matrix attention_out;
    NormWeights attention_after;
    NormWeights ffn_norm;
    Matrix gate, up, down;               // up: of both if the description says fused
    ExpertWeights experts;
    NormWeights ffn_after;
};

class Model {
public:
    // Opens, checks and maps the file, and packs its weights if `pack`. Throws ModelError, also when the weights are larger than the
    // memory this process may use (cells come on top of it and are not counted, since they grow with use).
    Model(const std::string& path, bool pack, const Packing& packing);

    const GgufFile& file() const { return file_; }
    const Description& description() const { return description_; }
    int vocabulary() const { return description_.vocabulary; }
    uint64_t weight_bytes() const { return weight_bytes_; }

    const std::vector<Layer>& layers() const { return layers_; }
    const NormWeights& output_norm() const { return output_norm_; }
    const Matrix& output() const { return output_; }
    // Of each of the description's ropes: float32 [rope dimensions / 2] or null.
    const std::vector<ggml_tensor*>& rope_factors() const { return rope_factors_; }

    // How many matrices of each type our kernels and ggml multiply, and the bytes that packed ones take.
    const std::map<std::string, int>& packed_types() const { return packed_types_; }
    const std::map<std::string, int>& unpacked_types() const { return unpacked_types_; }
    uint64_t packed_bytes() const { return packed_bytes_; }
    // Of the matrices of one type.
    struct TypeWeights {
        int matrices = 0;
        uint64_t file_bytes = 0;
        uint64_t memory_bytes = 0;  // packed, if our kernels can multiply them
        bool quick = false;         // they can
    };
    std::map<std::string, TypeWeights> weights_by_type() const;
    // With what became of the file for them.
    const PackedWeights& packed() const { return packed_; }

    // True when ggml multiplies some weight's rows in groups (it does on some ARM CPUs), in which case an even number of
    // rows in a batch takes another path than an odd one and may give other bits.
    bool grouped_rows() const { return grouped_rows_; }

    // Writes the scaled embedding of `token` as float32 [embedding] to `out`. 0 <= token < vocabulary.
    void embed(int token, float* out) const;

private:
    const GgufTensor& require(const std::string& name) const;
    void check_shape(const GgufTensor& tensor, std::vector<int64_t> shape) const;
    bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
    void read_layers();
    void read_attention(const std::string& block, const LayerAttention& attention, Layer& layer);
    void read_feed_forward(const std::string& block, int width, Layer& layer);
    void read_experts(const std::string& block, Layer& layer);
    std::vector<Matrix> stack(const std::string& name, int64_t in, int64_t out);
    ggml_tensor* head_norm(const std::string& name, int heads, int size);
    ggml_tensor* joined_bias(const std::string& block, const std::vector<std::pair<std::string, int64_t>>& parts);
    Matrix feed_forward_matrix(const std::string& name, int64_t in, int64_t out);
    Matrix matrix(const std::string& name, int64_t in, int64_t out);
    NormWeights norm(const std::string& name, bool required);
    ggml_tensor* weight(const GgufTensor& tensor, int64_t first = 0, int64_t count = 1);
    void check_vector(const GgufTensor& tensor, std::vector<int64_t> shape) const;
    ggml_tensor* vector(const std::string& name, std::vector<int64_t> shape, bool required);
    void read_embedding(const GgufTensor& embedding);
    void fill_vectors();
    void pack_weights(const Packing& packing);
    std::vector<Matrix*> matrices();
    std::vector<const Matrix*> matrices() const;
    void count(const Matrix& matrix);
    void refuse_unused() const;
    void check_memory() const;

    MappedFile mapped_;
    GgufFile file_;
    Description description_;
    uint64_t weight_bytes_ = 0;   // in memory
    bool pack_;
    bool grouped_rows_ = false;
    uint64_t packed_bytes_ = 0;
    std::map<std::string, int> packed_types_;
    std::map<std::string, int> unpacked_types_;

    GgmlContext weights_;      // tensors in the mapping
    GgmlContext vectors_;      // tensors in vector_buffer_
    GgmlBuffer mapping_;
    GgmlBuffer vector_buffer_;
    std::vector<std::pair<ggml_tensor*, const GgufTensor*>> pending_;  // vectors to fill
    std::unordered_set<std::string_view> used_;

    const GgufTensor* embedding_ = nullptr;
    const PackedMatrix* packed_embedding_ = nullptr;  // when the output head is the same matrix, and packed
    PackedWeights packed_;
    std::vector<Layer> layers_;
    NormWeights output_norm_;
    Matrix output_;
    std::vector<ggml_tensor*> rope_factors_;
};

}  // namespace tokenloom
