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
#include "models/hparams.h"
#include "cache/kv_pool.h"
#include "attention/rope.h"
#include "system/thread_team.h"

namespace tokenloom {

class AttentionOps {
public:
    // `rope_factors`: float32 [rope dimensions / 2] or null. `kernels`: what multiplies the weights, for whose instruction
    // set attention is done as well; null: any.
    AttentionOps(const HParams& hparams, const ggml_tensor* rope_factors, KvPool& pool, const Kernels* kernels, ThreadTeam& team);

    // Before every compute, in the team's shift: which batch the ops work on. It must stay until the compute is done.
    // `rows`: its rows, and those of padding behind them.
    void prepare(const FlatBatch& batch, int rows);

    // Adds "turn the key and store it and the value of this layer" to the graph. key and value: float32
    // [head_size * kv_heads, rows], perhaps views. The result is a tensor without use but to order what follows.
    ggml_tensor* store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value);
    // Adds the layer's attention, the query turned. query: float32 [head_size * heads, rows], perhaps a view; the result is
    // of the same shape.
    ggml_tensor* attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored);

private:
    struct LayerOp {
        AttentionOps* owner;
        int layer;
    };

    static void store_op(ggml_tensor* out, int thread, int threads, void* op);
    static void attend_op(ggml_tensor* out, int thread, int threads, void* op);

    AttentionShape shape_;
    Rope rope_;
    KvPool& pool_;
    const AttentionKernels& kernels_;
    const RowKernels& storing_;
    ThreadTeam& team_;
    const FlatBatch* batch_ = nullptr;
    int padded_rows_ = 0;
    AttentionPlan plan_;
    std::vector<float> angles_;                     // [rows][angle_floats()]
    std::vector<LayerOp> ops_;
    std::vector<float> stored_;                     // of tiles that are cut
    std::unique_ptr<std::atomic<int>[]> unfinished_; // of them, by tile and KV head: items to go
    size_t unfinished_size_ = 0;
    std::vector<AttentionScratch> scratch_;         // by thread
};

}  // namespace tokenloom
