// The two custom ops of a layer's attention in the ggml graph: storing the batch's keys and values in the cells, and
// attending over pages.
//
// ggml orders nodes, not what happens within one; so storing and attending are nodes of their own, the second an operand of
// the first's result. The team of threads shares out the work within each, of the second the largest tiles first. Which
// thread does what changes no bit.

#pragma once

#include <ggml.h>

#include <memory>
#include <vector>

#include "attention.h"
#include "batch.h"
#include "hparams.h"
#include "kv_pool.h"
#include "thread_team.h"

namespace tokenloom {

class AttentionOps {
public:
    AttentionOps(const HParams& hparams, KvPool& pool, ThreadTeam& team);

    // Before every compute: which batch the ops work on. It must stay until the compute is done.
    void prepare(const FlatBatch& batch);

    // Adds "store key and value of this layer" to the graph. key and value: float32 [head_size, kv_heads, rows],
    // a row's heads adjoining.
    // The result is a tensor without use but to order what follows.
    ggml_tensor* store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value);
    // Adds the layer's attention. query: float32 [head_size * heads, rows], as is the result.
    ggml_tensor* attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored);

private:
    // Up to as many rows of one run as share a page's cost well, and few enough to spread over threads.
    struct Tile {
        const Run* run;
        int first;  // row within the run
        int rows;
    };
    struct LayerOp {
        AttentionOps* owner;
        int layer;
    };
    struct Scratch {
        AttentionScratch attention;
        std::vector<PageView> pages;
    };

    static void store_op(ggml_tensor* out, int thread, int threads, void* op);
    static void attend_op(ggml_tensor* out, int thread, int threads, void* op);
    void attend_tile(const Tile& tile, int layer, int kv_head, const float* query, float* out, Scratch& scratch) const;

    const HParams& hparams_;
    KvPool& pool_;
    ThreadTeam& team_;
    int group_;      // query heads per KV head
    int tile_rows_;
    float scale_;
    const FlatBatch* batch_ = nullptr;
    std::vector<Tile> tiles_;
    std::unique_ptr<LayerOp[]> ops_;
    std::vector<Scratch> scratch_;  // by thread
};

}  // namespace tokenloom
