// Built like the portable kernels; nothing in here is fused.

#include "graph/rows_op.h"

#include <cstring>

#include "kernels/row_kernels.h"
#include "kernels/vector8.h"

namespace tokenloom {

namespace {

const float* row_of(const ggml_tensor* t, int row) {
    return reinterpret_cast<const float*>(static_cast<const uint8_t*>(t->data) + static_cast<size_t>(row) * t->nb[1]);
}

// 1 / (1 + e^-x).
float sigmoid(float x) {
    const float e = exp8(splat8(x < 0 ? x : -x))[0];
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

}  // namespace

ggml_tensor* RowsOps::add_normed(ggml_context* context, const MultiplyOps::Made& normed, float factor, ggml_tensor* before) {
    Epilogue how;
    how.factor = factor;
    Node& node = nodes_.emplace_back(Node{&team_, rows_, normed, how});
    ggml_tensor* operands[] = {normed.x, before};
    return ggml_custom_4d(context, GGML_TYPE_F32, normed.x->ne[0], normed.x->ne[1], 1, 1, operands, 2, add_normed_op, GGML_N_TASKS_MAX, &node);
}

ggml_tensor* RowsOps::add_share(ggml_context* context, ggml_tensor* x, ggml_tensor* logits, float factor, ggml_tensor* before) {
    Epilogue how;
    how.factor = factor;
    Node& node = nodes_.emplace_back(Node{&team_, rows_, {x}, how});
    ggml_tensor* operands[] = {x, logits, before};
    return ggml_custom_4d(context, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, 1, operands, 3, add_share_op, GGML_N_TASKS_MAX, &node);
}

ggml_tensor* RowsOps::finish(ggml_context* context, ggml_tensor* x, const Epilogue& how, ggml_tensor* added) {
    Node& node = nodes_.emplace_back(Node{&team_, rows_, {x}, how});
    ggml_tensor* operands[] = {x, added};
    return ggml_custom_4d(context, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, 1, operands, added == nullptr ? 1 : 2, finish_op, GGML_N_TASKS_MAX,
                          &node);
}

// The portable kernels, for every instruction set: so little work that others would not show.
void RowsOps::add_normed_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const int columns = static_cast<int>(out->ne[0]);
    const ActivationSource source{node.normed.kind, static_cast<const float*>(out->src[0]->data), out->src[0]->nb[1] / sizeof(float), columns,
                                  node.normed.weight, node.normed.epsilon, node.normed.bias};
    node.team->share(*node.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            auto* to = reinterpret_cast<float*>(static_cast<uint8_t*>(out->data) + static_cast<size_t>(row) * out->nb[1]);
            kPortableRows.write_tile(source, ActivationForm::whole, row, 1, 0, columns, reinterpret_cast<uint8_t*>(to));
            Epilogue how = node.how;
            how.added = row_of(out->src[1], row);
            tokenloom::finish(how, to, static_cast<size_t>(columns), 1, columns);
        }
    });
}

void RowsOps::add_share_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const auto columns = static_cast<size_t>(out->ne[0]);
    node.team->share(*node.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            auto* to = reinterpret_cast<float*>(static_cast<uint8_t*>(out->data) + static_cast<size_t>(row) * out->nb[1]);
            const float share = sigmoid(row_of(out->src[1], row)[0]);
            const float* x = row_of(out->src[0], row);
            for (size_t i = 0; i < columns; ++i) {
                to[i] = x[i] * share;
            }
            Epilogue how = node.how;
            how.added = row_of(out->src[2], row);
            tokenloom::finish(how, to, columns, 1, static_cast<int>(columns));
        }
    });
}

void RowsOps::finish_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const auto columns = static_cast<size_t>(out->ne[0]);
    node.team->share(*node.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            auto* to = reinterpret_cast<float*>(static_cast<uint8_t*>(out->data) + static_cast<size_t>(row) * out->nb[1]);
            std::memcpy(to, row_of(out->src[0], row), columns * sizeof(float));
            Epilogue how = node.how;
            how.added = out->src[1] == nullptr ? nullptr : row_of(out->src[1], row);
            tokenloom::finish(how, to, columns, 1, static_cast<int>(columns));
        }
    });
}

}  // namespace tokenloom
