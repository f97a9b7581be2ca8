#include "forward.h"

#include <time.h>

#include <chrono>
#include <cstring>

#include "errors.h"

namespace tokenloom {

namespace {

// More than a layer's nodes and leaves, and those around the layers.
constexpr size_t kNodesPerLayer = 48;
constexpr size_t kOtherNodes = 64;
// A buffer grown for more logits than this is given back afterwards.
constexpr int kKeptOutputs = 128;

// Of all the process's threads.
double cpu_seconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Forward::Forward(const Model& model, KvPool& pool, const Kernels* kernels, int threads)
    : model_(model),
      threads_(threads),
      odd_rows_(model.grouped_rows()),
      attention_(model.hparams(), pool, threads),
      multiply_(kernels, threads),
      nodes_(kNodesPerLayer * model.hparams().layers + kOtherNodes) {
    ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, threads);
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

// The one place where a weight meets activations.
ggml_tensor* Forward::multiply(const Matrix& matrix, ggml_tensor* x) {
    ggml_tensor* y;
    if (matrix.packed == nullptr) {
        y = ggml_mul_mat(context_.get(), matrix.weight, x);
    } else {
        if (quantized_.first != x) {
            quantized_ = {x, multiply_.quantize(context_.get(), x)};
        }
        y = multiply_.multiply(context_.get(), {matrix.packed}, quantized_.second, static_cast<int>(x->ne[1]));
    }
    return matrix.bias == nullptr ? y : ggml_add(context_.get(), y, matrix.bias);
}

ggml_tensor* Forward::normalize(ggml_tensor* x, ggml_tensor* weight) const {
    return ggml_mul(context_.get(), ggml_rms_norm(context_.get(), x, model_.hparams().rms_epsilon), weight);
}

// x: [head_size * heads, rows], turned by each row's position.
ggml_tensor* Forward::rotate(ggml_tensor* x, int heads) const {
    const RopeParams& r = model_.hparams().rope;
    ggml_tensor* split = ggml_reshape_3d(context_.get(), x, model_.hparams().head_size, heads, x->ne[1]);
    // Files of architecture llama have their heads permuted for pairs of neighbours, ggml's normal mode.
    return ggml_rope_ext(context_.get(), split, positions_, model_.rope_factors(), r.dimensions, GGML_ROPE_TYPE_NORMAL,
                         r.original_context, r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
}

ggml_tensor* Forward::feed_forward(const Layer& layer, ggml_tensor* x) {
    ggml_tensor* normed = normalize(x, layer.ffn_norm);
    ggml_tensor* up = multiply(layer.up, normed);
    ggml_tensor* gate = multiply(layer.gate, normed);
    return ggml_add(context_.get(), multiply(layer.down, ggml_swiglu_split(context_.get(), gate, up)), x);
}

void Forward::build(int rows, int outputs, bool pick) {
    const HParams& h = model_.hparams();
    ggml_context* context = context_.get();
    ggml_reset(context);
    multiply_.clear();
    quantized_ = {};
    graph_ = ggml_new_graph_custom(context, nodes_, false);

    embeddings_ = ggml_new_tensor_2d(context, GGML_TYPE_F32, h.embedding, rows);
    ggml_set_input(embeddings_);
    positions_ = ggml_new_tensor_1d(context, GGML_TYPE_I32, rows);
    ggml_set_input(positions_);
    picks_ = nullptr;
    logits_ = nullptr;
    if (pick) {
        picks_ = ggml_new_tensor_1d(context, GGML_TYPE_I32, outputs);
        ggml_set_input(picks_);
    }

    ggml_tensor* x = embeddings_;
    for (int i = 0; i < h.layers; ++i) {
        const Layer& layer = model_.layers()[i];
        const bool last = i + 1 == h.layers;
        ggml_tensor* normed = normalize(x, layer.attention_norm);
        ggml_tensor* key = rotate(multiply(layer.key, normed), h.kv_heads);
        ggml_tensor* value = multiply(layer.value, normed);
        ggml_tensor* stored = attention_.store(context, i, key, value);
        ggml_build_forward_expand(graph_, stored);
        if (last && outputs == 0) {  // nobody asks for more than the cells
            return;
        }
        ggml_tensor* query = rotate(multiply(layer.query, normed), h.heads);
        ggml_tensor* mixed = attention_.attend(context, i, query, stored);
        if (last && picks_ != nullptr) {  // what follows is needed for the outputs only
            mixed = ggml_get_rows(context, mixed, picks_);
            x = ggml_get_rows(context, x, picks_);
        }
        x = ggml_add(context, multiply(layer.attention_out, mixed), x);
        x = feed_forward(layer, x);
    }
    logits_ = multiply(model_.output(), normalize(x, model_.output_norm()));
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
}

void Forward::write_inputs(const FlatBatch& batch) {
    const size_t width = model_.hparams().embedding;
    auto* rows = static_cast<float*>(embeddings_->data);
    auto* positions = static_cast<int32_t*>(positions_->data);
    for (int row = 0; row < batch.rows(); ++row) {
        model_.embed(batch.tokens[row], rows + row * width);
        positions[row] = batch.slots[row].position;
    }
    for (int row = batch.rows(); row < rows_; ++row) {  // padding
        std::memset(rows + row * width, 0, width * sizeof(float));
        positions[row] = 0;
    }
    if (picks_ != nullptr) {
        auto* picks = static_cast<int32_t*>(picks_->data);
        for (int i = 0; i < outputs_; ++i) {
            picks[i] = i < static_cast<int>(batch.outputs.size()) ? batch.outputs[i] : 0;
        }
    }
}

void Forward::compute(int rows) {
    const int threads = threads_.choose(rows);
    ggml_cplan plan = ggml_graph_plan(graph_, threads, threadpool_.get());
    if (work_.size() < plan.work_size) {
        work_.resize(plan.work_size);
    }
    plan.work_data = work_.data();
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = cpu_seconds();
    const ggml_status status = ggml_graph_compute(graph_, &plan);
    if (status != GGML_STATUS_SUCCESS) {
        throw EngineError(std::string("ggml could not compute the batch: ") + ggml_status_to_string(status));
    }
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    threads_.report(rows, threads, wall, cpu_seconds() - cpu_start);
}

std::span<const float> Forward::run(const FlatBatch& batch) {
    const int rows = padded(batch.rows());
    const int outputs = padded(static_cast<int>(batch.outputs.size()));
    const bool pick = !batch.outputs.empty() && batch.outputs.size() < batch.tokens.size();
    if (outputs_ > kKeptOutputs && outputs <= kKeptOutputs) {
        allocator_.reset();
    }
    if (!allocator_ || rows != rows_ || outputs != outputs_ || pick != (picks_ != nullptr)) {
        rows_ = -1;  // until it is built
        if (!allocator_) {
            allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
        }
        build(rows, outputs, pick);
        if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
            allocator_.reset();
            throw EngineError("no memory for a batch of " + std::to_string(batch.rows()) + " tokens with " +
                              std::to_string(outputs) + " rows of logits");
        }
        rows_ = rows;
        outputs_ = outputs;
    }
    write_inputs(batch);
    attention_.prepare(batch);
    multiply_.prepare();

    compute(rows);
    if (logits_ == nullptr) {
        return {};
    }
    return {static_cast<const float*>(logits_->data), batch.outputs.size() * static_cast<size_t>(model_.vocabulary())};
}

}  // namespace tokenloom
