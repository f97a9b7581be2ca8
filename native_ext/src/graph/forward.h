// The forward: a FlatBatch through the model's ggml graph, to the logits of the rows asked for.
//
// The graph has one node sequence for any number of rows, every node treats rows independently, and no node sees how many
// there are; that, our own matrix multiplication (multiply_op.h, or ggml's plain one) and attention (attention.h) make a row's logits depend on
// its own sequence alone. Where all nodes are ours, the graph and its buffer have room for more rows than the batch has, and are
// kept until a batch needs more; where ggml has some, they are kept while the numbers of rows and outputs stay the same.
// Not thread-safe.

#pragma once

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>
#include <span>
#include <vector>

#include "graph/attention_op.h"
#include "cache/batch.h"
#include "cache/kv_pool.h"
#include "models/model.h"
#include "graph/expert_op.h"
#include "graph/multiply_op.h"
#include "graph/rows_op.h"
#include "system/thread_team.h"

namespace tokenloom {

class Forward {
public:
    // `kernels` multiply the model's packed weights, and may be null when it has none. Nodes of ours are shared out by the
    // team, and ggml runs the graph on the caller's thread; only where it has weights to multiply itself, it does so on as
    // many threads of its own.
    Forward(const Model& model, KvPool& pool, const Kernels* kernels, ThreadTeam& team);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

    // Runs the batch on `threads` threads, which a shift of the team has: stores its keys and values in the cells its slots name, and returns float32 logits
    // [outputs][vocabulary], valid until the next call. Pages of the slots must be in the pool.
    // Throws EngineError when memory for the batch cannot be had; the cells of the batch are then undefined.
    std::span<const float> run(const FlatBatch& batch, int threads);

    // Take the path for weights whose rows ggml multiplies in groups (see Model::grouped_rows) whatever the weights.
    // For tests.
    void force_odd_rows() { odd_rows_ = true; }

    // Whether ggml multiplies weights itself, on threads of its own.
    bool ggml_multiplies() const { return ggml_multiplies_; }

    size_t buffer_bytes() const;

private:
    struct AllocatorFree {
        void operator()(ggml_gallocr_t allocator) const { ggml_gallocr_free(allocator); }
    };
    struct PoolFree {
        void operator()(ggml_threadpool_t pool) const { ggml_threadpool_free(pool); }
    };

    // Of the same activations with several weights.
    struct Products {
        std::vector<ggml_tensor*> parts;  // float32 [weight's rows, rows], views of `whole` if there is one
        ggml_tensor* whole;               // the parts one below the other, or null
    };
    using Made = MultiplyOps::Made;
    using Ending = MultiplyOps::Ending;

    int padded(int rows) const { return odd_rows_ && rows % 2 == 0 && rows > 0 ? rows + 1 : rows; }
    bool fits() const;
    void rebuild();
    void build();
    ggml_tensor* pick(ggml_tensor* x);
    static void pick_op(ggml_tensor* out, int thread, int threads, void* forward);
    Made normed(ggml_tensor* x, const NormWeights& norm) const;
    Made activated(ggml_tensor* x, int layer, bool gated) const;
    ggml_tensor* multiply(const Matrix& matrix, const Made& made, const Ending& ending = {});
    Products multiply_all(const std::vector<const Matrix*>& matrices, const Made& made);
    Products query_key_value(const Layer& layer, int index, const Made& made, bool keys_only);
    ggml_tensor* feed_forward(const Matrix& gate, const Matrix& up, const Matrix& down, int layer, const Made& made, const Ending& ending);
    ggml_tensor* experts(const ExpertWeights& weights, int layer, const Made& made, const Ending& ending);
    // What a branch gives is added to what was: normalized before, if the model does that.
    ggml_tensor* add_branch(const NormWeights& after, ggml_tensor* branch, ggml_tensor* before);
    void write_inputs(const FlatBatch& batch);
    void compute(int threads);

    const Model& model_;
    ThreadTeam& team_;
    bool ggml_multiplies_;
    bool roomy_;  // the graph may be, since all its nodes are ours
    bool odd_rows_;
    AttentionOps attention_;
    MultiplyOps multiply_;
    RowsOps rows_op_;
    ExpertOps experts_;
    std::unique_ptr<ggml_threadpool, PoolFree> threadpool_;
    GgmlContext context_;
    std::unique_ptr<std::remove_pointer_t<ggml_gallocr_t>, AllocatorFree> allocator_;
    std::vector<uint8_t> work_;

    // Of the batch, padding included.
    int rows_ = 0;
    int outputs_ = 0;
    std::vector<int32_t> picks_;  // [outputs]: the row of each

    // The graph as built last.
    int most_rows_ = -1;
    int most_outputs_ = -1;
    size_t nodes_;
    ggml_cgraph* graph_ = nullptr;
    ggml_cplan plan_{};
    int planned_threads_ = 0;            // 0: no plan
    ggml_tensor* embeddings_ = nullptr;  // float32 [embedding, most rows]
    ggml_tensor* logits_ = nullptr;      // float32 [vocabulary, most outputs], null without outputs
};

}  // namespace tokenloom
