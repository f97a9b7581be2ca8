// Small work on rows within the ggml graph that no multiplication does on its way: sums with what was normalized, and what becomes
// of products that ggml made.
//
// The rules of multiply_op.h hold here, too: nodes work on as many rows as a number says, and belong to their graph until clear().

#pragma once

#include <ggml.h>

#include <deque>

#include "graph/epilogue.h"
#include "graph/multiply_op.h"
#include "system/thread_team.h"

namespace tokenloom {

class RowsOps {
public:
    explicit RowsOps(ThreadTeam& team) : team_(team) {}

    void clear() { nodes_.clear(); }
    // Nodes made from now on are of `*rows` rows when the graph runs.
    void count_rows(const int* rows) { rows_ = rows; }

    // factor * the normalized rows + before; of float32 [columns, rows] both.
    ggml_tensor* add_normed(ggml_context* context, const MultiplyOps::Made& normed, float factor, ggml_tensor* before);
    // factor * sigmoid(logits) * x + before; of float32 [columns, rows], but logits [1, rows].
    ggml_tensor* add_share(ggml_context* context, ggml_tensor* x, ggml_tensor* logits, float factor, ggml_tensor* before);
    // What the epilogue makes of x, float32 [columns, rows]; added: of its shape, or null.
    ggml_tensor* finish(ggml_context* context, ggml_tensor* x, const Epilogue& how, ggml_tensor* added);

private:
    struct Node {
        ThreadTeam* team;
        const int* rows;
        MultiplyOps::Made normed;
        Epilogue how;
    };

    static void add_normed_op(ggml_tensor* out, int thread, int threads, void* node);
    static void add_share_op(ggml_tensor* out, int thread, int threads, void* node);
    static void finish_op(ggml_tensor* out, int thread, int threads, void* node);

    ThreadTeam& team_;
    const int* rows_ = nullptr;
    std::deque<Node> nodes_;  // a deque: ggml keeps their addresses
};

}  // namespace tokenloom
