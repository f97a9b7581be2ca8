// The two custom ops of a layer's attention in the ggml graph: storing the batch's keys and values in the cells, and
// attending over pages.
//
// ggml orders nodes, not what happens within one; so storing and attending are nodes of their own, the second an operand of
// the first's result. The team of threads shares out the work within each, of the second the most costly items first
// (attention_plan.h); whoever ends the last item of a tile that was cut gathers its results. Which thread does what
// changes no bit.

#pragma once

#include <ggml.h>

#include <atomic>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_plan.h"
#include "cache/batch.h"
#include "models/model.h"
#include "cache/kv_pool.h"
#include "attention/rope.h"
#include "system/thread_team.h"

namespace tokenloom {

class AttentionOps {
public:
    // `kernels`: what multiplies the weights, for whose instruction set attention is done as well; null: any.
    AttentionOps(const Model& model, KvPool& pool, const Kernels* kernels, ThreadTeam& team);

    // Before every compute, in the team's shift: which batch the ops work on. It must stay until the compute is done.
    // `rows`: its rows, and those of padding behind them.
    void prepare(const FlatBatch& batch, int rows);

    // Adds "turn the key and store it and the value of this layer" to the graph. key: float32 [key_size * kv_heads, rows], value:
    // [value_size * kv_heads, rows], perhaps views; query: what attend() will be given, or null. The result is a tensor without use
    // but to order what follows.
    ggml_tensor* store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value, ggml_tensor* query);
    // Adds the layer's attention, the query turned. query: float32 [key_size * heads, rows], perhaps a view; the result is
    // float32 [value_size * heads, rows].
    ggml_tensor* attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored);

private:
    // Of the layers with one shape.
    struct Kind {
        AttentionShape shape;
        AttentionPlan plan;
        std::unique_ptr<std::atomic<int>[]> unfinished;  // of tiles that are cut, by tile and KV head: items to go
        size_t unfinished_size = 0;
    };
    struct LayerOp {
        AttentionOps* owner;
        int layer;
        int cells;            // of the pool
        size_t kind;
        float divisor;
        int rope;             // or -1
        HeadTurn query, key;  // without what is of a batch
        const float* sinks;
    };
    HeadTurn turn_of(const LayerOp& op, const HeadTurn& turn) const;
    void prepare(Kind& kind);

    static void store_op(ggml_tensor* out, int thread, int threads, void* op);
    static void attend_op(ggml_tensor* out, int thread, int threads, void* op);

    const Description& model_;
    std::vector<Rope> ropes_;
    std::vector<Kind> kinds_;
    KvPool& pool_;
    const AttentionKernels& kernels_;
    const RowKernels& storing_;
    ThreadTeam& team_;
    const FlatBatch* batch_ = nullptr;
    int padded_rows_ = 0;
    std::vector<std::vector<float>> angles_;  // of each rope: [rows][angle_floats()]
    std::vector<float> query_scales_;         // [rows], of a model whose queries grow with the position; otherwise empty
    std::vector<float> row_factors_[2];       // [rows], of rows normalized as a whole: queries' and keys'
    std::vector<LayerOp> ops_;
    std::vector<float> stored_;               // of tiles that are cut
    std::vector<AttentionScratch> scratch_;   // by thread
};

}  // namespace tokenloom
