#include "models/model.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <cstring>

#include "system/errors.h"
#include "system/memory.h"

namespace tokenloom {

namespace {

std::string shape_text(const int64_t* shape, int dimensions) {
    std::string out = "[";
    for (int i = 0; i < dimensions; ++i) {
        out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return out + "]";
}

GgmlContext tensor_context(size_t tensors) {
    ggml_init_params params{};
    params.mem_size = ggml_tensor_overhead() * (tensors + 1);
    params.no_alloc = true;
    return GgmlContext(ggml_init(params));
}

bool can_multiply(ggml_type type) {
    const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(type);
    if (traits->vec_dot == nullptr) {
        return false;
    }
    // The other side is converted from float32 to vec_dot_type, and rows of the embedding to float32.
    return (traits->vec_dot_type == GGML_TYPE_F32 || ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr) &&
           (type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr);
}

std::string types_that_multiply() {
    std::string out;
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        if (ggml_type_size(static_cast<ggml_type>(type)) != 0 && can_multiply(static_cast<ggml_type>(type))) {
            out += (out.empty() ? "" : ", ") + std::string(ggml_type_name(static_cast<ggml_type>(type)));
        }
    }
    return out;
}

}  // namespace

Model::Model(const std::string& path, bool pack, const Packing& packing)
    : mapped_(path), file_(mapped_), description_(read_description(file_)), pack_(pack) {
    ggml_cpu_init();
    const GgufTensor& embedding = require("token_embd.weight");
    read_embedding(embedding);
    // A stack of experts is a tensor each, and so are views of one.
    const size_t most = file_.tensors().size() * static_cast<size_t>(std::max(1, description_.experts.count)) * 2 + 1;
    weights_ = tensor_context(most);
    vectors_ = tensor_context(most);
    mapping_.reset(ggml_backend_cpu_buffer_from_ptr(const_cast<uint8_t*>(mapped_.data()), mapped_.size()));
    if (!weights_ || !vectors_ || !mapping_) {
        throw std::bad_alloc();
    }

    const int64_t width = description_.embedding;
    output_norm_ = norm("output_norm", true);
    const bool own = has("output.weight");
    if (description_.head == Description::Head::own && !own) {
        require("output.weight");
    }
    if (own && description_.head != Description::Head::tied) {
        output_ = matrix("output", width, vocabulary());
        weight(embedding);  // checks that its type can be read
    } else {
        check_shape(embedding, {width, vocabulary()});
        output_.weight = weight(embedding);
        output_.bias = vector("output.bias", {vocabulary()}, false);
    }
    for (const RopeKind& rope : description_.ropes) {
        if (!rope.other_factors.empty()) {
            vector(rope.other_factors, {rope.params.dimensions / 2}, false);
        }
        rope_factors_.push_back(rope.factors.empty() ? nullptr : vector(rope.factors, {rope.params.dimensions / 2}, rope.factors_required));
    }
    read_layers();
    refuse_unused();
    check_memory();
    fill_vectors();
    if (pack_) {
        pack_weights(packing);
    }
    for (const Matrix* m : matrices()) {
        count(*m);
    }
}

void Model::read_embedding(const GgufTensor& embedding) {
    constexpr int64_t most_tokens = 1 << 24;
    if (embedding.dimensions != 2 || embedding.shape[0] != description_.embedding || embedding.shape[1] > most_tokens) {
        file_.fail("tensor 'token_embd.weight' has shape " + shape_text(embedding.shape.data(), embedding.dimensions) + ", expected [" +
                   std::to_string(description_.embedding) + ", at most " + std::to_string(most_tokens) + " tokens]");
    }
    embedding_ = &embedding;
    description_.vocabulary = static_cast<int>(embedding.shape[1]);
    if (const GgufValue* tokens = file_.find("tokenizer.ggml.tokens")) {
        const auto* array = std::get_if<GgufArray>(&tokens->data);
        if (array == nullptr || array->count != static_cast<uint64_t>(vocabulary())) {
            file_.fail("'tokenizer.ggml.tokens' is no list of " + std::to_string(vocabulary()) +
                       " tokens, as many as 'token_embd.weight' has rows");
        }
    }
}

const GgufTensor& Model::require(const std::string& name) const {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
        file_.fail("tensor '" + name + "' is missing");
    }
    return *tensor;
}

void Model::check_shape(const GgufTensor& tensor, std::vector<int64_t> shape) const {
    bool equal = true;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
        equal = equal && tensor.shape[i] == (i < shape.size() ? shape[i] : 1);
    }
    if (!equal) {
        file_.fail("tensor '" + tensor.name + "' has shape " + shape_text(tensor.shape.data(), tensor.dimensions) + ", expected " +
                   shape_text(shape.data(), static_cast<int>(shape.size())));
    }
}

Matrix Model::matrix(const std::string& name, int64_t in, int64_t out) {
    const GgufTensor& tensor = require(name + ".weight");
    check_shape(tensor, {in, out});
    Matrix m;
    m.weight = weight(tensor);
    m.scale = vector(name + ".scale", {1}, false);
    m.bias = vector(name + ".bias", {out}, false);
    return m;
}

NormWeights Model::norm(const std::string& name, bool required) {
    NormWeights n;
    n.weight = vector(name + ".weight", {description_.embedding}, required);
    if (n.weight != nullptr && description_.norm == NormKind::layer) {
        n.bias = vector(name + ".bias", {description_.embedding}, false);
    }
    return n;
}

// Number `first` of a stack of `count`.
ggml_tensor* Model::weight(const GgufTensor& tensor, int64_t first, int64_t count) {
    if (!can_multiply(tensor.type)) {
        file_.fail("tensor '" + tensor.name + "' has type " + ggml_type_name(tensor.type) +
                   ", which ggml cannot multiply; supported are " + types_that_multiply());
    }
    ggml_tensor* t = ggml_new_tensor_2d(weights_.get(), tensor.type, tensor.shape[0], tensor.shape[1]);
    const size_t bytes = ggml_nbytes(t);
    if (bytes * static_cast<size_t>(count) != tensor.bytes) {
        file_.fail("tensor '" + tensor.name + "' takes " + std::to_string(tensor.bytes) + " bytes where ggml expects " +
                   std::to_string(bytes * static_cast<size_t>(count)));
    }
    ggml_set_name(t, tensor.name.c_str());
    ggml_backend_tensor_alloc(mapping_.get(), t, const_cast<uint8_t*>(mapped_.data()) + tensor.offset + bytes * static_cast<size_t>(first));
    used_.insert(tensor.name);
    const bool packed = pack_ && PackedMatrix::can_pack(tensor.type);
    weight_bytes_ += packed ? PackedMatrix::bytes_of(tensor.type, tensor.shape[1], tensor.shape[0]) : bytes;
    return t;
}

void Model::check_vector(const GgufTensor& tensor, std::vector<int64_t> shape) const {
    check_shape(tensor, std::move(shape));
    if (tensor.type != GGML_TYPE_F32 && tensor.type != GGML_TYPE_F16 && tensor.type != GGML_TYPE_BF16) {
        file_.fail("tensor '" + tensor.name + "' has type " + ggml_type_name(tensor.type) + "; f32, f16 and bf16 are supported");
    }
}

ggml_tensor* Model::vector(const std::string& name, std::vector<int64_t> shape, bool required) {
    const GgufTensor* tensor = required ? &require(name) : file_.find_tensor(name);
    if (tensor == nullptr) {
        return nullptr;
    }
    check_vector(*tensor, shape);
    ggml_tensor* t = ggml_new_tensor(vectors_.get(), GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
    ggml_set_name(t, name.c_str());
    pending_.emplace_back(t, tensor);
    used_.insert(tensor->name);
    return t;
}

void Model::fill_vectors() {
    vector_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(vectors_.get(), ggml_backend_cpu_buffer_type()));
    if (!vector_buffer_) {
        throw std::bad_alloc();
    }
    for (const auto& [tensor, source] : pending_) {
        const uint8_t* data = mapped_.data() + source->offset;
        if (source->type == GGML_TYPE_F32) {
            std::memcpy(tensor->data, data, source->bytes);
        } else {
            ggml_get_type_traits(source->type)->to_float(data, static_cast<float*>(tensor->data), ggml_nelements(tensor));
        }
    }
    pending_.clear();
}

std::vector<Matrix*> Model::matrices() {
    std::vector<Matrix*> all;
    for (Layer& layer : layers_) {
        for (Matrix* m : {&layer.query_key_value, &layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.gate, &layer.up,
                          &layer.down, &layer.experts.router, &layer.experts.shared_gate, &layer.experts.shared_up,
                          &layer.experts.shared_down, &layer.experts.shared_share}) {
            all.push_back(m);
        }
        for (std::vector<Matrix>* stack : {&layer.experts.gate, &layer.experts.up, &layer.experts.down}) {
            for (Matrix& m : *stack) {
                all.push_back(&m);
            }
        }
    }
    all.push_back(&output_);
    std::erase_if(all, [](const Matrix* m) { return m->weight == nullptr; });
    return all;
}

std::vector<const Matrix*> Model::matrices() const {
    std::vector<Matrix*> all = const_cast<Model*>(this)->matrices();
    return {all.begin(), all.end()};
}

std::map<std::string, Model::TypeWeights> Model::weights_by_type() const {
    std::map<std::string, TypeWeights> types;
    for (const Matrix* m : matrices()) {
        const ggml_tensor* weight = m->weight;
        TypeWeights& type = types[ggml_type_name(weight->type)];
        type.quick = PackedMatrix::can_pack(weight->type);
        type.matrices += 1;
        type.file_bytes += ggml_nbytes(weight);
        type.memory_bytes += type.quick ? PackedMatrix::bytes_of(weight->type, weight->ne[1], weight->ne[0]) : ggml_nbytes(weight);
    }
    return types;
}

void Model::pack_weights(const Packing& packing) {
    std::vector<Matrix*> packable;
    std::vector<PackSource> sources;
    for (Matrix* m : matrices()) {
        const ggml_tensor* weight = m->weight;
        if (PackedMatrix::can_pack(weight->type)) {
            packable.push_back(m);
            sources.push_back({weight->type, static_cast<const uint8_t*>(weight->data), weight->ne[1], weight->ne[0]});
        }
    }
    packed_ = pack_all(sources, packing, [&](const PackSource& s) { mapped_.release(s.data, ggml_row_size(s.type, s.columns) * s.rows); });
    for (size_t i = 0; i < packable.size(); ++i) {
        packable[i]->packed = &packed_.matrices[i];
        packed_bytes_ += packed_.matrices[i].bytes();
    }
    if (output_.weight->data == mapped_.data() + embedding_->offset) {
        packed_embedding_ = output_.packed;
    }
    // What the kernel mapped around the pages that were touched; weights that ggml multiplies come back as they are used.
    mapped_.release(mapped_.data() + file_.data_offset(), mapped_.size() - file_.data_offset());
}

void Model::count(const Matrix& matrix) {
    ++(matrix.packed != nullptr ? packed_types_ : unpacked_types_)[ggml_type_name(matrix.weight->type)];
    grouped_rows_ = grouped_rows_ || (matrix.packed == nullptr && ggml_get_type_traits_cpu(matrix.weight->type)->nrows > 1);
}

void Model::refuse_unused() const {
    // Layers for speculation lie behind the others.
    const auto blocks = file_.unsigned_of(description_.architecture + ".block_count").value_or(0);
    const auto beyond = [&](const std::string& name) {
        for (auto i = static_cast<uint64_t>(description_.layers()); i < blocks; ++i) {
            if (name.starts_with("blk." + std::to_string(i) + ".")) {
                return true;
            }
        }
        return false;
    };
    for (const GgufTensor& tensor : file_.tensors()) {
        // Old converters stored inverse frequencies that every reader computes itself.
        const bool ignored = tensor.name.find("rot_embd") != std::string::npos || tensor.name.find("rope.freqs") != std::string::npos;
        if (!ignored && !used_.contains(tensor.name) && !beyond(tensor.name)) {
            file_.fail("tensor " + shown(tensor.name) + " has no place in a " + description_.architecture + " model of " +
                       std::to_string(description_.layers()) + " layers as this engine runs it");
        }
    }
}

void Model::check_memory() const {
    const auto available = available_memory();
    if (available && weight_bytes_ > *available) {
        file_.fail("the weights take " + std::to_string(weight_bytes_) + " bytes and this process may use " +
                   std::to_string(*available) + " bytes (free memory and cgroup limit); take a smaller or more strongly quantized model");
    }
}

void Model::embed(int token, float* out) const {
    const int64_t width = description_.embedding;
    const auto scale = [&] {
        if (description_.embedding_scale != 1.0f) {
            for (int64_t i = 0; i < width; ++i) {
                out[i] *= description_.embedding_scale;
            }
        }
    };
    if (packed_embedding_ != nullptr) {
        packed_embedding_->read_row(token, out);
        scale();
        return;
    }
    const uint8_t* row = mapped_.data() + embedding_->offset + static_cast<size_t>(token) * ggml_row_size(embedding_->type, width);
    if (embedding_->type == GGML_TYPE_F32) {
        std::memcpy(out, row, static_cast<size_t>(width) * sizeof(float));
    } else {
        ggml_get_type_traits(embedding_->type)->to_float(row, out, width);
    }
    scale();
}

}  // namespace tokenloom
