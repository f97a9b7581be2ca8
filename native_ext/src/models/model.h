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
#include "models/hparams.h"
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
// multiply it; bias: float32 [out] or null.
struct Matrix {
    ggml_tensor* weight = nullptr;
    const PackedMatrix* packed = nullptr;
    ggml_tensor* bias = nullptr;
};

struct Layer {
    ggml_tensor* attention_norm = nullptr;  // float32 [embedding]
    Matrix query, key, value, attention_out;
    ggml_tensor* ffn_norm = nullptr;        // float32 [embedding]
    Matrix gate, up, down;
};

class Model {
public:
    // Opens, checks and maps the file, and packs its weights if `pack`. Throws ModelError, also when the weights are larger than the
    // memory this process may use (cells come on top of it and are not counted, since they grow with use).
    Model(const std::string& path, bool pack, const Packing& packing);

    const GgufFile& file() const { return file_; }
    const HParams& hparams() const { return hparams_; }
    int vocabulary() const { return vocabulary_; }
    uint64_t weight_bytes() const { return weight_bytes_; }

    const std::vector<Layer>& layers() const { return layers_; }
    ggml_tensor* output_norm() const { return output_norm_; }
    const Matrix& output() const { return output_; }
    // float32 [rope dimensions / 2] or null.
    ggml_tensor* rope_factors() const { return rope_factors_; }

    // How many matrices of each type our kernels and ggml multiply, and the bytes that packed ones take.
    const std::map<std::string, int>& packed_types() const { return packed_types_; }
    const std::map<std::string, int>& unpacked_types() const { return unpacked_types_; }
    uint64_t packed_bytes() const { return packed_bytes_; }
    // With what became of the file for them.
    const PackedWeights& packed() const { return packed_; }

    // True when ggml multiplies some weight's rows in groups (it does on some ARM CPUs), in which case an even number of
    // rows in a batch takes another path than an odd one and may give other bits.
    bool grouped_rows() const { return grouped_rows_; }

    // Writes the embedding of `token` as float32 [embedding] to `out`. 0 <= token < vocabulary.
    void embed(int token, float* out) const;

private:
    const GgufTensor& require(const std::string& name) const;
    void check_shape(const GgufTensor& tensor, std::vector<int64_t> shape) const;
    Matrix matrix(const std::string& name, int64_t in, int64_t out);
    ggml_tensor* weight(const GgufTensor& tensor);
    ggml_tensor* vector(const std::string& name, int64_t size, bool required);
    void fill_vectors();
    void pack_weights(const Packing& packing);
    std::vector<Matrix*> matrices();
    void count(const Matrix& matrix);
    void refuse_unused() const;
    void check_memory() const;

    MappedFile mapped_;
    GgufFile file_;
    HParams hparams_;
    int vocabulary_ = 0;
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
    ggml_tensor* output_norm_ = nullptr;
    Matrix output_;
    ggml_tensor* rope_factors_ = nullptr;
};

}  // namespace tokenloom
