// Causal attention over pages of cells, for one tile of queries and one KV head.
//
// Contract: the output of a query depends on the query and on the keys and values of positions 0 to its own, bit for bit,
// and on nothing else: not on the other queries of the tile, not on where the pages lie, not on the thread. It holds
// because every query goes through the same steps on every page: scores summed over the head's dimensions in ascending
// order, one maximum, one exponential sum in a fixed tree, an output summed over positions in ascending order; and the
// partial results (maximum, sum, output) of its pages are combined in page order, each started from scratch. Faster
// versions may share a page's work between queries, as long as they keep these orders.
//
// Sums are float32. The exponential is our own, since libm's differs between systems.

#pragma once

#include <ggml.h>

#include <cstddef>
#include <vector>

namespace tokenloom {

constexpr int kPageSize = 64;

// Scratch of one thread: sized once, so that nothing is allocated in a forward.
class AttentionScratch {
public:
    AttentionScratch(int head_size, int max_queries);

    int padded_head;             // head size rounded up to whole vectors
    std::vector<float> keys;     // [head_size][kPageSize]
    std::vector<float> values;   // [kPageSize][padded_head]
    std::vector<float> queries;  // [max_queries][head_size]
    std::vector<float> scores;   // [block][kPageSize]
    std::vector<float> partial;  // [block][padded_head]
    std::vector<float> output;   // [max_queries][padded_head]
    std::vector<float> maximum;  // [max_queries]
    std::vector<float> sum;      // [max_queries]
};

// Where one page's keys and values of the KV head lie (kv_pool.h has the layout).
struct PageView {
    const ggml_fp16_t* keys;
    const ggml_fp16_t* values;
};

struct AttentionTile {
    int rows;                // tokens, at consecutive positions
    int first_position;      // of the first of them
    int group;               // query heads that share the KV head
    int head_size;
    float scale;             // multiplies the scores
    const float* queries;    // of row 0 and the group's first head: float32 [head_size], heads adjoining
    float* output;           // likewise
    size_t row_stride;       // floats from one row to the next, in both
};

// `pages` are those of positions 0 to the last row's. rows * group must not exceed the scratch's max_queries.
void attend(const AttentionTile& tile, const PageView* pages, AttentionScratch& scratch);

}  // namespace tokenloom
