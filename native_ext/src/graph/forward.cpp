#include "graph/forward.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "system/errors.h"

namespace tokenloom {

namespace {

// More than a layer's nodes and leaves, and those around the layers.
constexpr size_t kNodesPerLayer = 48;
constexpr size_t kNodesOfExperts = 32;
constexpr size_t kOtherNodes = 64;
// A buffer grown for more logits than this is given back afterwards.
constexpr int kKeptOutputs = 128;
constexpr int kLeastRoom = 32;

// A little more than a power of two, so that tensors do not all begin at the same place of a page.
int room_for(int rows) { return std::max(kLeastRoom, static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)))) + 1; }

// Whether no node of the model's graph is ggml's own.
bool all_ours(const Model& model) { return model.unpacked_types().empty(); }

size_t most_nodes(const Model& model) {
    return (kNodesPerLayer + static_cast<size_t>(model.description().experts.count > 0 ? kNodesOfExperts : 0)) * model.layers().size() +
           kOtherNodes;
}

const float* numbers(const ggml_tensor* t) { return t == nullptr ? nullptr : static_cast<const float*>(t->data); }

}  // namespace

Forward::Forward(const Model& model, KvPool& pool, const Kernels* kernels, ThreadTeam& team)
    : model_(model),
      team_(team),
      ggml_multiplies_(!model.unpacked_types().empty()),
      roomy_(all_ours(model)),
      odd_rows_(model.grouped_rows()),
      attention_(model, pool, kernels, team),
      multiply_(kernels, team),
      rows_op_(team),
      experts_(model.description().experts, kernels, team),
      nodes_(most_nodes(model)) {
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

Forward::Made Forward::normed(ggml_tensor* x, const NormWeights& norm) const {
    const Description& d = model_.description();
    if (norm.weight == nullptr) {
        return {x};
    }
    return {x, d.norm == NormKind::rms ? ActivationSource::normed : ActivationSource::layer_normed, numbers(norm.weight), d.epsilon,
            numbers(norm.bias)};
}

Forward::Made Forward::activated(ggml_tensor* x, int layer, bool gated) const {
    const Description& d = model_.description();
    using Kind = ActivationSource::Kind;
    static constexpr Kind kinds[][2] = {
        {ActivationSource::silu, ActivationSource::gated},           {ActivationSource::gelu, ActivationSource::gelu_gated},
        {ActivationSource::erf_gelu, ActivationSource::erf_gated},   {ActivationSource::relu_squared, ActivationSource::relu_squared},
        {ActivationSource::silu, ActivationSource::clamped_gated},   {ActivationSource::xielu, ActivationSource::xielu},
    };
    const float* parameters = d.xielu.empty() ? nullptr : d.xielu.data() + static_cast<size_t>(layer) * 4;
    return {x, kinds[static_cast<int>(d.activation)][gated ? 1 : 0], parameters};
}

// The product with one weight. This and multiply_all() are where weights meet activations.
ggml_tensor* Forward::multiply(const Matrix& matrix, const Made& made, const Ending& ending) {
    ggml_context* context = context_.get();
    const auto rows = static_cast<int>(made.x->ne[1]);
    if (matrix.packed != nullptr) {
        return multiply_.multiply(context, {{matrix.packed, numbers(matrix.bias), numbers(matrix.scale), matrix.bias_first}},
                                  multiply_.quantize(context, made, matrix.packed->form()), rows, ending);
    }
    ggml_tensor* x = made.kind == ActivationSource::plain ? made.x : multiply_.dense(context, made);
    ggml_tensor* y = ggml_mul_mat(context, matrix.weight, x);
    if (matrix.scale == nullptr && matrix.bias == nullptr && ending.added == nullptr && ending.factor == 1.0f && ending.cap == 0.0f) {
        return y;
    }
    return rows_op_.finish(context, y, {numbers(matrix.scale), numbers(matrix.bias), ending.factor, ending.cap, nullptr, matrix.bias_first},
                           ending.added);
}

Forward::Products Forward::multiply_all(const std::vector<const Matrix*>& matrices, const Made& made) {
    ggml_context* context = context_.get();
    std::vector<MultiplyOps::Part> packed;
    for (const Matrix* matrix : matrices) {
        if (matrix->packed != nullptr && (packed.empty() || matrix->packed->form() == packed[0].matrix->form())) {
            packed.push_back({matrix->packed, numbers(matrix->bias), numbers(matrix->scale), matrix->bias_first});
        }
    }
    Products out{{}, nullptr};
    if (packed.size() == matrices.size()) {
        ggml_tensor* tiles = multiply_.quantize(context, made, packed[0].matrix->form());
        out.whole = multiply_.multiply(context, packed, tiles, static_cast<int>(made.x->ne[1]), {});
        if (packed.size() == 1) {
            out.parts.push_back(out.whole);
            return out;
        }
        size_t offset = 0;
        for (const MultiplyOps::Part& part : packed) {
            out.parts.push_back(ggml_view_2d(context, out.whole, part.matrix->rows(), made.x->ne[1], out.whole->nb[1], offset));
            offset += static_cast<size_t>(part.matrix->rows()) * sizeof(float);
        }
        return out;
    }
    for (const Matrix* matrix : matrices) {
        out.parts.push_back(multiply(*matrix, made));
    }
    return out;
}

// Parts: key, value, and unless nobody asks for it, query.
Forward::Products Forward::query_key_value(const Layer& layer, int index, const Made& made, bool keys_only) {
    const LayerAttention& a = model_.description().attention[static_cast<size_t>(index)];
    if (layer.query_key_value.weight == nullptr) {
        std::vector<const Matrix*> weights{&layer.key, &layer.value};
        if (!keys_only) {
            weights.push_back(&layer.query);
        }
        return multiply_all(weights, made);
    }
    Products out{{}, multiply(layer.query_key_value, made)};
    const int64_t queries = int64_t{a.heads} * a.key_size;
    const int64_t keys = int64_t{a.kv_heads} * a.key_size;
    const auto part = [&](int64_t rows, int64_t before) {
        return ggml_view_2d(context_.get(), out.whole, rows, out.whole->ne[1], out.whole->nb[1], static_cast<size_t>(before) * sizeof(float));
    };
    out.parts = {part(keys, queries), part(int64_t{a.kv_heads} * a.value_size, queries + keys), part(queries, 0)};
    return out;
}

ggml_tensor* Forward::feed_forward(const Matrix& gate, const Matrix& up, const Matrix& down, int layer, const Made& made,
                                   const Ending& ending) {
    const bool fused = model_.description().fused_up;
    if (gate.weight == nullptr) {
        return multiply(down, activated(multiply(up, made), layer, fused), ending);
    }
    const Products both = multiply_all({&gate, &up}, made);
    ggml_tensor* whole = both.whole != nullptr ? both.whole : ggml_concat(context_.get(), both.parts[0], both.parts[1], 0);
    return multiply(down, activated(whole, layer, true), ending);
}

ggml_tensor* Forward::experts(const ExpertWeights& weights, int layer, const Made& made, const Ending& ending) {
    ggml_context* context = context_.get();
    ggml_tensor* rows = made.kind == ActivationSource::plain ? made.x : multiply_.dense(context, made);
    ggml_tensor* routed = experts_.route(context, multiply(weights.router, {rows}), numbers(weights.choice_bias));
    const bool gated = !weights.gate.empty();
    const ExpertOps::Form form = ExpertOps::form_of(weights.up);
    ggml_tensor* gathered = experts_.gather(context, rows, routed, form);
    ggml_tensor* inner;
    if (!gated) {
        inner = experts_.multiply(context, {&weights.up}, gathered, form);
    } else if (const ExpertOps::Form other = ExpertOps::form_of(weights.gate); other == form) {
        inner = experts_.multiply(context, {&weights.gate, &weights.up}, gathered, form);
    } else {
        ggml_tensor* gates = experts_.multiply(context, {&weights.gate}, experts_.gather(context, rows, routed, other), other);
        inner = ggml_concat(context, gates, experts_.multiply(context, {&weights.up}, gathered, form), 0);
    }
    const ExpertOps::Form down = ExpertOps::form_of(weights.down);
    ggml_tensor* made_inner = experts_.make(context, activated(inner, layer, gated), down);
    ggml_tensor* entries = experts_.multiply(context, {&weights.down}, made_inner, down);
    ggml_tensor* sum = experts_.combine(context, entries, ending.factor, ending.added);
    if (weights.shared_up.weight == nullptr) {
        return sum;
    }
    if (weights.shared_share.weight == nullptr) {
        return feed_forward(weights.shared_gate, weights.shared_up, weights.shared_down, layer, {rows}, {sum, ending.factor, 0.0f});
    }
    ggml_tensor* shared = feed_forward(weights.shared_gate, weights.shared_up, weights.shared_down, layer, {rows}, {});
    return rows_op_.add_share(context, shared, multiply(weights.shared_share, {rows}), ending.factor, sum);
}

ggml_tensor* Forward::add_branch(const NormWeights& after, ggml_tensor* branch, ggml_tensor* before) {
    return after.weight == nullptr ? branch : rows_op_.add_normed(context_.get(), normed(branch, after), model_.description().residual_scale, before);
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
    const Description& d = model_.description();
    ggml_context* context = context_.get();
    ggml_reset(context);
    multiply_.clear();
    multiply_.count_rows(&rows_);
    rows_op_.clear();
    rows_op_.count_rows(&rows_);
    experts_.clear();
    experts_.count_rows(&rows_, most_rows_);
    graph_ = ggml_new_graph_custom(context, nodes_, false);

    embeddings_ = ggml_new_tensor_2d(context, GGML_TYPE_F32, d.embedding, most_rows_);
    ggml_set_input(embeddings_);
    logits_ = nullptr;

    ggml_tensor* x = embeddings_;
    ggml_tensor* stored = nullptr;  // by the layer before
    for (int i = 0; i < d.layers(); ++i) {
        const Layer& layer = model_.layers()[static_cast<size_t>(i)];
        const bool last = i + 1 == d.layers();
        const bool cells_only = last && most_outputs_ == 0;  // nobody asks for more
        const Products products = query_key_value(layer, i, normed(x, layer.attention_norm), cells_only);
        stored = attention_.store(context, i, products.parts[0], products.parts[1], cells_only ? nullptr : products.parts[2]);
        ggml_build_forward_expand(graph_, stored);
        if (cells_only) {
            return;
        }
        ggml_tensor* mixed = attention_.attend(context, i, products.parts[2], stored);
        if (last) {  // what follows is needed for the outputs only
            mixed = pick(mixed);
            x = pick(x);
            multiply_.count_rows(&outputs_);
            rows_op_.count_rows(&outputs_);
            experts_.count_rows(&outputs_, most_outputs_);
        }
        // A branch that is normalized afterwards is added then.
        const Ending added{layer.attention_after.weight == nullptr ? x : nullptr,
                           layer.attention_after.weight == nullptr ? d.residual_scale : 1.0f, 0.0f};
        ggml_tensor* after = add_branch(layer.attention_after, multiply(layer.attention_out, {mixed}, added), x);
        const bool same_rows = d.parallel || (d.norm_before && layer.ffn_norm.weight == nullptr);
        const Made read = same_rows ? normed(x, layer.attention_norm) : normed(after, layer.ffn_norm);
        const Ending ending{layer.ffn_after.weight == nullptr ? after : nullptr,
                            layer.ffn_after.weight == nullptr ? d.residual_scale : 1.0f, 0.0f};
        ggml_tensor* branch = d.has_experts(i) ? experts(layer.experts, i, read, ending)
                                               : feed_forward(layer.gate, layer.up, layer.down, i, read, ending);
        x = add_branch(layer.ffn_after, branch, after);
    }
    logits_ = multiply(model_.output(), normed(x, model_.output_norm()), {nullptr, d.logit_scale, d.logit_cap});
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
}

void Forward::write_inputs(const FlatBatch& batch) {
    const size_t width = model_.description().embedding;
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
