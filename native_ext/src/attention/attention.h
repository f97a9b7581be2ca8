// Causal attention of one tile's rows for one KV head, over pages of cells.
//
// Contract: the output of a query depends on the query and on the keys and values of positions 0 to its own, bit for bit,
// and on nothing else: not on the other queries of the tile, not on where the pages lie or who shares them, not on how the
// work is cut, on the thread, or on the instruction set. It holds because every query goes through the same steps
// (attention_kernel.h) over pages and spans in order, wherever its rows stand.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "attention/attention_kernel.h"
#include "attention/attention_plan.h"
#include "attention/head_turn.h"
#include "cache/kv_pool.h"

namespace tokenloom {

struct Kernels;

// What was built, the slowest first; some may not work here (attention_check.h).
std::span<const AttentionKernels* const> all_attention_kernels();

// Those for the instruction set of the multiplication kernels, if they work here; otherwise, and if null, the fastest that do.
const AttentionKernels& attention_kernels_of(const Kernels* kernels,
                                             std::span<const AttentionKernels* const> candidates = all_attention_kernels());

// Scratch of one thread: sized once, so that nothing is allocated in a forward.
struct AttentionScratch {
    explicit AttentionScratch(std::span<const AttentionShape> shapes);  // any of which it can be used for
    AttentionScratch(AttentionScratch&&) = default;  // and no copy: the pointers are into `memory`

    std::vector<float> memory;  // of all but `visible`, each at a cache line's beginning
    float* keys;                // [key_size][kPageSize]
    float* values;              // [kPageSize][padded]
    float* scores;              // [2][kMostTogether][kPageSize]
    float* queries;             // [most queries][key_size]
    float* results;             // two spans' (span_floats())
    std::vector<int> visible;   // [most queries], and
    std::vector<int> hidden;    // [most queries] (attention_kernel.h)
};

// One layer of one forward.
struct AttentionWork {
    const AttentionKernels& kernels;
    const AttentionShape& shape;
    const AttentionPlan& plan;
    std::span<const Run> runs;
    const KvPool& pool;
    int layer;               // of the pool
    const float* query;      // float32 [rows of the batch][heads * key_size], a row every query_stride floats; not yet turned
    size_t query_stride;
    const HeadTurn& turn;    // of the queries
    const float* sinks;      // float32 [heads]: logits that take their share of the weights and have no value; or null
    float cap;               // of scores (attention_kernel.h), 0 for none
    float divisor;           // of scores
    float* output;           // float32 [rows of the batch][heads * value_size]
    float* stored;           // plan.stored_floats
};

// Keys that are read soon, to be fetched ahead: so many positions; null for none.
struct Ahead {
    const void* keys = nullptr;
    int positions = 0;
};

// What attend() reads first.
Ahead first_keys(const AttentionWork& work, const AttentionPlan::Item& item, int kv_head);

// One item for one KV head. Of a tile that is cut, results are stored; otherwise the tile's outputs are done. `after`: what
// this thread probably reads next.
void attend(const AttentionWork& work, const AttentionPlan::Item& item, int kv_head, AttentionScratch& scratch, const Ahead& after = {});

// The outputs of a tile that is cut, from the stored results of all its items for the KV head.
void gather(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head);

}  // namespace tokenloom
