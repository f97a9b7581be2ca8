#include "graph/forward.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "system/errors.h"

namespace tokenloom {

namespace {

// More than a layer's nodes and leaves, and those around the layers.
constexpr size_t kNodesPerLayer = 48;
constexpr size_t kOtherNodes = 64;
// A buffer grown for more logits than this is given back afterwards.
constexpr int kKeptOutputs = 128;
constexpr int kLeastRoom = 32;

// A little more than a power of two, so that tensors do not all begin at the same place of a page.
int room_for(int rows) { return std::max(kLeastRoom, static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)))) + 1; }

bool is_ours(const Matrix& matrix) { return matrix.packed != nullptr && matrix.bias == nullptr; }

// Whether no node of the model's graph is ggml's own.
bool all_ours(const Model& model) {
    const auto form = [](const Matrix& matrix) { return matrix.packed->form(); };
    for (const Layer& layer : model.layers()) {
        for (const Matrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.attention_out, &layer.gate, &layer.up, &layer.down}) {
            if (!is_ours(*matrix)) {
                return false;
            }
        }
        if (form(layer.key) != form(layer.query) || form(layer.value) != form(layer.query) || form(layer.gate) != form(layer.up)) {
            return false;
        }
    }
    return is_ours(model.output());
}

}  // namespace

Forward::Forward(const Model& model, KvPool& pool, const Kernels* kernels, ThreadTeam& team)
    : model_(model),
      team_(team),
      ggml_multiplies_(!model.unpacked_types().empty()),
      roomy_(all_ours(model)),
      odd_rows_(model.grouped_rows()),
      attention_(model.hparams(), model.rope_factors(), pool, kernels, team),
      multiply_(kernels, team),
      nodes_(kNodesPerLayer * model.hparams().layers + kOtherNodes) {
    ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, ggml_multiplies_ ? team.threads() : 1);
    params.poll = 0;  // sleep, do not spin, between forwards
    threadpool_.reset(ggml_threadpool_new(&params));

    ggml_init_params memory{};
    memory.mem_size = nodes_ * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes_, false);
    memory.no_alloc = true;
    context_.reset(ggml_init(memory));
    if (!threadpool_ || !context_) {
        throw EngineError("no memory or threads for the forward's graph");
    }
}

Forward::~Forward() = default;

size_t Forward::buffer_bytes() const {
    return (allocator_ ? ggml_gallocr_get_buffer_size(allocator_.get(), 0) : 0) + work_.size();
}

// A product with one weight, its bias and `added`, if there are any. This and multiply_normed() are where weights meet
// activations.
ggml_tensor* Forward::multiply(const Matrix& matrix, ggml_tensor* x, ggml_tensor* added) {
    ggml_context* context = context_.get();
    if (matrix.packed != nullptr && matrix.bias == nullptr) {
        return multiply_.multiply(context, {matrix.packed}, multiply_.quantize(context, x, matrix.packed->form()),
                                  static_cast<int>(x->ne[1]), added);
    }
    ggml_tensor* y = matrix.packed == nullptr ? ggml_mul_mat(context, matrix.weight, x)
                                              : multiply_.multiply(context, {matrix.packed},
                                                                   multiply_.quantize(context, x, matrix.packed->form()),
                                                                   static_cast<int>(x->ne[1]));
    if (matrix.bias != nullptr) {
        y = ggml_add(context, y, matrix.bias);
    }
    return added == nullptr ? y : ggml_add(context, y, added);
}

// Products of the normalized x with several weights, biases added.
Forward::Products Forward::multiply_normed(const std::vector<const Matrix*>& matrices, ggml_tensor* x, ggml_tensor* weight) {
    ggml_context* context = context_.get();
    std::vector<const PackedMatrix*> packed;
    for (const Matrix* matrix : matrices) {
        if (matrix->packed != nullptr && matrix->bias == nullptr && (packed.empty() || matrix->packed->form() == packed[0]->form())) {
            packed.push_back(matrix->packed);
        }
    }
    Products out{{}, nullptr};
    if (packed.size() == matrices.size()) {
        ggml_tensor* normed = multiply_.quantize_normed(context, x, packed[0]->form(), weight, model_.hparams().rms_epsilon);
        out.whole = multiply_.multiply(context, packed, normed, static_cast<int>(x->ne[1]));
        if (packed.size() == 1) {
            out.parts.push_back(out.whole);
            return out;
        }
        size_t offset = 0;
        for (const PackedMatrix* matrix : packed) {
            out.parts.push_back(ggml_view_2d(context, out.whole, matrix->rows(), x->ne[1], out.whole->nb[1], offset));
            offset += static_cast<size_t>(matrix->rows()) * sizeof(float);
        }
        return out;
    }
    ggml_tensor* normed = normalize(x, weight);
    for (const Matrix* matrix : matrices) {
        out.parts.push_back(multiply(*matrix, normed));
    }
    return out;
}

ggml_tensor* Forward::normalize(ggml_tensor* x, ggml_tensor* weight) const {
    return ggml_mul(context_.get(), ggml_rms_norm(context_.get(), x, model_.hparams().rms_epsilon), weight);
}

ggml_tensor* Forward::feed_forward(const Layer& layer, ggml_tensor* x) {
    ggml_context* context = context_.get();
    const Products both = multiply_normed({&layer.gate, &layer.up}, x, layer.ffn_norm);
    if (both.whole != nullptr && layer.down.packed != nullptr && layer.down.bias == nullptr) {
        ggml_tensor* gated = multiply_.quantize_gated(context, both.whole, layer.down.packed->form());
        return multiply_.multiply(context, {layer.down.packed}, gated, static_cast<int>(x->ne[1]), x);
    }
    return multiply(layer.down, ggml_swiglu_split(context, both.parts[0], both.parts[1]), x);
}

// The rows that are outputs.
ggml_tensor* Forward::pick(ggml_tensor* x) {
    return ggml_custom_4d(context_.get(), GGML_TYPE_F32, x->ne[0], most_outputs_, 1, 1, &x, 1, pick_op, 1, this);
}

void Forward::pick_op(ggml_tensor* out, int thread, int, void* forward) {
    const auto& self = *static_cast<const Forward*>(forward);
    const ggml_tensor* x = out->src[0];
    for (int i = 0; thread == 0 && i < self.outputs_; ++i) {
        std::memcpy(static_cast<uint8_t*>(out->data) + static_cast<size_t>(i) * out->nb[1],
                    static_cast<const uint8_t*>(x->data) + static_cast<size_t>(self.picks_[i]) * x->nb[1], out->ne[0] * sizeof(float));
    }
}

void Forward::build() {
    const HParams& h = model_.hparams();
    ggml_context* context = context_.get();
    ggml_reset(context);
    multiply_.clear();
    multiply_.count_rows(&rows_);
    graph_ = ggml_new_graph_custom(context, nodes_, false);

    embeddings_ = ggml_new_tensor_2d(context, GGML_TYPE_F32, h.embedding, most_rows_);
    ggml_set_input(embeddings_);
    logits_ = nullptr;

    ggml_tensor* x = embeddings_;
    for (int i = 0; i < h.layers; ++i) {
        const Layer& layer = model_.layers()[i];
        const bool last = i + 1 == h.layers;
        const bool cells_only = last && most_outputs_ == 0;  // nobody asks for more
        std::vector<const Matrix*> weights{&layer.key, &layer.value};
        if (!cells_only) {
            weights.push_back(&layer.query);
        }
        const Products products = multiply_normed(weights, x, layer.attention_norm);
        ggml_tensor* stored = attention_.store(context, i, products.parts[0], products.parts[1]);
        ggml_build_forward_expand(graph_, stored);
        if (cells_only) {
            return;
        }
        ggml_tensor* mixed = attention_.attend(context, i, products.parts[2], stored);
        if (last) {  // what follows is needed for the outputs only
            mixed = pick(mixed);
            x = pick(x);
            multiply_.count_rows(&outputs_);
        }
        x = multiply(layer.attention_out, mixed, x);
        x = feed_forward(layer, x);
    }
    logits_ = multiply_normed({&model_.output()}, x, model_.output_norm()).parts[0];
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
}

void Forward::write_inputs(const FlatBatch& batch) {
    const size_t width = model_.hparams().embedding;
    auto* rows = static_cast<float*>(embeddings_->data);
    team_.run(batch.rows(), [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            model_.embed(batch.tokens[row], rows + row * width);
        }
    });
    for (int row = batch.rows(); row < rows_; ++row) {  // padding
        std::memset(rows + row * width, 0, width * sizeof(float));
    }
    picks_.assign(batch.outputs.begin(), batch.outputs.end());
    picks_.resize(static_cast<size_t>(outputs_), 0);
}

void Forward::compute(int threads) {
    if (planned_threads_ != threads) {
        plan_ = ggml_graph_plan(graph_, ggml_multiplies_ ? threads : 1, threadpool_.get());
        if (work_.size() < plan_.work_size) {
            work_.resize(plan_.work_size);
        }
        plan_.work_data = work_.data();
        planned_threads_ = threads;
    }
    const ggml_status status = ggml_graph_compute(graph_, &plan_);
    if (status != GGML_STATUS_SUCCESS) {
        throw EngineError(std::string("ggml could not compute the batch: ") + ggml_status_to_string(status));
    }
}

bool Forward::fits() const {
    if (!roomy_) {
        return rows_ == most_rows_ && outputs_ == most_outputs_;
    }
    return rows_ <= most_rows_ && outputs_ <= most_outputs_ && (outputs_ > kKeptOutputs || most_outputs_ <= room_for(kKeptOutputs));
}

void Forward::rebuild() {
    if (most_outputs_ > room_for(kKeptOutputs)) {
        allocator_.reset();
    }
    most_rows_ = roomy_ ? std::max(room_for(rows_), most_rows_) : rows_;
    most_outputs_ = roomy_ ? room_for(outputs_) : outputs_;
    if (!allocator_) {
        allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
    }
    planned_threads_ = 0;
    build();
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
        allocator_.reset();
        const int outputs = most_outputs_;
        most_rows_ = most_outputs_ = -1;
        throw EngineError("no memory for a batch of " + std::to_string(rows_) + " tokens with " + std::to_string(outputs) +
                          " rows of logits");
    }
}

std::span<const float> Forward::run(const FlatBatch& batch, int threads) {
    rows_ = padded(batch.rows());
    outputs_ = padded(static_cast<int>(batch.outputs.size()));
    if (!fits()) {
        rebuild();
    }
    write_inputs(batch);
    attention_.prepare(batch, rows_);
    compute(threads);
    if (logits_ == nullptr) {
        return {};
    }
    return {static_cast<const float*>(logits_->data), batch.outputs.size() * static_cast<size_t>(model_.vocabulary())};
}

}  // namespace tokenloom
