// Causal attention over one page of cells, as a table of kernels for each instruction set. All give the same bits.
//
// What a query's output is, in float32 and in this order:
//
//     for each span of kSpanPages pages, from m = -infinity, l = 0, o = 0; for each of its pages with a position to see:
//         s[j] = sum over d of query[d] * keys[d][j]            d ascending, fused multiply-adds from 0
//                (of int8 cells: of the integers, then times the position's scale)
//                of a model with a cap: cap * tanh(s[j] / cap), as (1 - e) / (1 + e) of e = 2^(-2 |s[j]| / (cap * ln 2))
//         m'   = max(m, s[j] of the positions the query sees);  c = 2^(m - m')
//         w[j] = 2^(s[j] - m'), 0 for positions it does not see
//         l    = fma(l, c, the w[j] summed in the tree below)
//         o[d] = o[d] * c, then fma(w[j], values[j][d], o[d])   j ascending
//                (of int8 cells: w[j] times the position's scale, and the integers)
//     the spans' (m, l, o) combined in order (attention.h), and o[d] * (1 / l) at the end.
//
// The query comes turned and scaled by log2(e) and the model's own factor, mostly 1 / sqrt(key size); so does the cap. A layer
// with a window begins with the page where the query's begins. Nothing of it depends on other queries, on where pages
// lie or on how many are worked on together. Positions a query does not see may be added with weight 0: no o[d] is ever
// -0, so that changes none (2^x is 0 below x = -100, hence no product of a weight and a value underflows).
//
// The tree: (w[i] + w[16+i]) + (w[32+i] + w[48+i]) for 16 lanes i, and then halves of lanes: i + (i + 8), + 4, + 2, + 1.
//
// Included where the instruction set differs: nothing of the standard library in here (kernel_table.h tells why).

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/page_format.h"

namespace tokenloom {

constexpr int kSpanPages = 4;
constexpr int kMostLanes = 16;  // outputs are padded to whole vectors of so many

// Queries against one page. Scratch belongs to the calling thread.
struct PageTask {
    PageView page;
    const void* next;       // keys that are read soon, or null: to be fetched ahead
    int next_positions;     // that are read of them, 1 to kPageSize
    int key_size;
    int value_size;
    int padded;             // value_size rounded up to a multiple of kMostLanes
    int queries;
    float cap;              // of scores, 0 for none
    const float* query;     // [queries][key_size]
    const int* visible;     // [queries]: where the positions of the page end that the query sees, 1 to kPageSize, and
    const int* hidden;      // [queries]: where they begin, below that
    float* maximum;         // [queries]: m
    float* sum;             // [queries]: l
    float* output;          // [queries][padded]: o
    float* wide_keys;       // scratch [key_size][kPageSize]
    float* wide_values;     // scratch [kPageSize][padded]
    float* scores;          // scratch [2][kMostTogether][kPageSize]
};
constexpr int kMostTogether = 6;  // queries in one block, of any kernel

struct AttentionKernels {
    const char* name;
    void (*attend_page[kKvTypes])(const PageTask& task);
    bool (*usable)();  // on this machine
};

extern const AttentionKernels kPortableAttention;
#ifdef TOKENLOOM_X86_KERNELS
extern const AttentionKernels kAvx2Attention;
extern const AttentionKernels kAvx512Attention;
#endif

}  // namespace tokenloom
