// Built with the instruction set that ggml itself was built for, and with fused multiply-add allowed (CMakeLists.txt).

#include "attention.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "vector8.h"

namespace tokenloom {

namespace {

constexpr int kLanes = 8;
constexpr int kBlock = 3;  // queries worked on together: 3 x 4 accumulators and 4 operands fill 16 registers

// scores[n][j] = sum over d of queries[n][d] * keys[d][j], d ascending, for every j of the page.
template <int N, typename T>
void score(const float* queries, int head_size, const T* keys, float* scores) {
    for (int j = 0; j < kPageSize; j += 4 * kLanes) {
        Float8 sums[N][4] = {};
        const T* k = keys + j;
        for (int d = 0; d < head_size; ++d, k += kPageSize) {
            Float8 key[4];
            for (int i = 0; i < 4; ++i) {
                load8(key[i], k + i * kLanes);
            }
            for (int n = 0; n < N; ++n) {
                const Float8 q = splat8(queries[n * head_size + d]);
                for (int i = 0; i < 4; ++i) {
                    sums[n][i] += q * key[i];
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            for (int i = 0; i < 4; ++i) {
                store8(scores + n * kPageSize + j + i * kLanes, sums[n][i]);
            }
        }
    }
}

// partial[n][d] = sum over j < positions of weights[n][j] * values[j][d], j ascending, for W vectors of dimensions.
template <int N, int W, typename T>
void mix_columns(const float* weights, int positions, const T* values, size_t stride, float* partial, int padded) {
    Float8 sums[N][W] = {};
    for (int j = 0; j < positions; ++j, values += stride) {
        Float8 value[W];
        for (int i = 0; i < W; ++i) {
            load8(value[i], values + i * kLanes);
        }
        for (int n = 0; n < N; ++n) {
            const Float8 w = splat8(weights[n * kPageSize + j]);
            for (int i = 0; i < W; ++i) {
                sums[n][i] += w * value[i];
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        for (int i = 0; i < W; ++i) {
            store8(partial + static_cast<size_t>(n) * padded + i * kLanes, sums[n][i]);
        }
    }
}

template <int N, typename T>
void mix(const float* weights, int positions, const T* values, size_t stride, float* partial, int padded) {
    int d = 0;
    for (; d + 4 * kLanes <= padded; d += 4 * kLanes) {
        mix_columns<N, 4>(weights, positions, values + d, stride, partial + d, padded);
    }
    for (; d < padded; d += kLanes) {
        mix_columns<N, 1>(weights, positions, values + d, stride, partial + d, padded);
    }
}

template <typename T>
void score_block(int n, const float* queries, int head_size, const T* keys, float* scores) {
    switch (n) {
        case 1: return score<1>(queries, head_size, keys, scores);
        case 2: return score<2>(queries, head_size, keys, scores);
        default: return score<kBlock>(queries, head_size, keys, scores);
    }
}

template <typename T>
void mix_block(int n, const float* weights, int positions, const T* values, size_t stride, float* partial, int padded) {
    switch (n) {
        case 1: return mix<1>(weights, positions, values, stride, partial, padded);
        case 2: return mix<2>(weights, positions, values, stride, partial, padded);
        default: return mix<kBlock>(weights, positions, values, stride, partial, padded);
    }
}

// Scores of a page to exp(score - maximum), 0 from `positions` on. Returns the maximum and the sum.
std::pair<float, float> soften(float* scores, int positions) {
    std::fill(scores + positions, scores + kPageSize, -std::numeric_limits<float>::infinity());
    Float8 best = splat8(-std::numeric_limits<float>::infinity());
    for (int j = 0; j < kPageSize; j += kLanes) {
        Float8 s;
        load8(s, scores + j);
        best = max8(s, best);
    }
    float maximum = best[0];
    for (int i = 1; i < kLanes; ++i) {
        maximum = std::max(maximum, best[i]);
    }
    Float8 sum = splat8(0.0f);
    for (int j = 0; j < kPageSize; j += kLanes) {
        Float8 s;
        load8(s, scores + j);
        s = exp8(s - maximum);
        store8(scores + j, s);
        sum += s;
    }
    return {maximum, sum8(sum)};
}

// Adds one page's partial result to what the pages before gave.
void combine(float& maximum, float& sum, float* output, float page_maximum, float page_sum, const float* partial, int padded) {
    const float both = std::max(maximum, page_maximum);
    const Float8 factors = exp8(Float8{maximum - both, page_maximum - both, 0, 0, 0, 0, 0, 0});
    const float before = factors[0];
    const float now = factors[1];
    maximum = both;
    sum = sum * before + page_sum * now;
    for (int d = 0; d < padded; d += kLanes) {
        Float8 o, p;
        load8(o, output + d);
        load8(p, partial + d);
        store8(output + d, o * before + p * now);
    }
}

// All queries of the tile against one page; `first` is the page's first position.
template <typename T>
void attend_page(const AttentionTile& tile, int first, const T* keys, const T* values, size_t value_stride, AttentionScratch& s) {
    const int queries = tile.rows * tile.group;
    const auto visible = [&](int query) {  // positions of this page that the query may see
        return std::min(kPageSize, tile.first_position + query / tile.group - first + 1);
    };
    // Rows ascend in position: those before the page come first.
    int query = std::max(0, first - tile.first_position) * tile.group;
    while (query < queries) {
        const int n = std::min(kBlock, queries - query);
        score_block(n, s.queries.data() + static_cast<size_t>(query) * tile.head_size, tile.head_size, keys, s.scores.data());
        float page_maximum[kBlock];
        float page_sum[kBlock];
        for (int i = 0; i < n; ++i) {
            std::tie(page_maximum[i], page_sum[i]) = soften(s.scores.data() + i * kPageSize, visible(query + i));
        }
        // Weights are 0 beyond a query's own positions, and adding 0 changes no sum.
        mix_block(n, s.scores.data(), visible(query + n - 1), values, value_stride, s.partial.data(), s.padded_head);
        for (int i = 0; i < n; ++i) {
            const int q = query + i;
            float* output = s.output.data() + static_cast<size_t>(q) * s.padded_head;
            const float* partial = s.partial.data() + static_cast<size_t>(i) * s.padded_head;
            if (first == 0) {
                s.maximum[q] = page_maximum[i];
                s.sum[q] = page_sum[i];
                std::copy(partial, partial + s.padded_head, output);
            } else {
                combine(s.maximum[q], s.sum[q], output, page_maximum[i], page_sum[i], partial, s.padded_head);
            }
        }
        query += n;
    }
}

void widen(const ggml_fp16_t* from, float* to, int count) {
    for (int i = 0; i < count; i += kLanes) {
        Float8 v;
        load8(v, from + i);
        store8(to + i, v);
    }
}

}  // namespace

AttentionScratch::AttentionScratch(int head_size, int max_queries)
    : padded_head((head_size + kLanes - 1) / kLanes * kLanes),
      keys(static_cast<size_t>(head_size) * kPageSize),
      values(static_cast<size_t>(padded_head) * kPageSize),
      queries(static_cast<size_t>(max_queries) * head_size),
      scores(kBlock * kPageSize),
      partial(static_cast<size_t>(kBlock) * padded_head),
      output(static_cast<size_t>(max_queries) * padded_head),
      maximum(max_queries),
      sum(max_queries) {}

void attend(const AttentionTile& tile, const PageView* pages, AttentionScratch& s) {
    const int head = tile.head_size;
    for (int row = 0; row < tile.rows; ++row) {
        const float* from = tile.queries + static_cast<size_t>(row) * tile.row_stride;
        float* to = s.queries.data() + static_cast<size_t>(row) * tile.group * head;
        for (int i = 0; i < tile.group * head; ++i) {
            to[i] = from[i] * tile.scale;
        }
    }

    const int page_count = (tile.first_position + tile.rows - 1) / kPageSize + 1;
    // Few queries read a page as it is stored; many share one widened copy. Widening is exact, so both give the same bits.
    const bool whole_vectors = head % kLanes == 0;
    const bool few = tile.rows * tile.group <= kBlock && whole_vectors;
    for (int page = 0; page < page_count; ++page) {
        if (few) {
            attend_page(tile, page * kPageSize, pages[page].keys, pages[page].values, head, s);
            continue;
        }
        widen(pages[page].keys, s.keys.data(), head * kPageSize);
        if (whole_vectors) {
            widen(pages[page].values, s.values.data(), head * kPageSize);
        } else {
            for (int j = 0; j < kPageSize; ++j) {
                ggml_fp16_t padded[kLanes] = {};
                const ggml_fp16_t* from = pages[page].values + static_cast<size_t>(j) * head;
                float* to = s.values.data() + static_cast<size_t>(j) * s.padded_head;
                const int whole = head / kLanes * kLanes;
                widen(from, to, whole);
                std::copy(from + whole, from + head, padded);
                widen(padded, to + whole, kLanes);
            }
        }
        attend_page(tile, page * kPageSize, s.keys.data(), s.values.data(), s.padded_head, s);
    }

    for (int row = 0; row < tile.rows; ++row) {
        for (int g = 0; g < tile.group; ++g) {
            const int q = row * tile.group + g;
            const float* from = s.output.data() + static_cast<size_t>(q) * s.padded_head;
            float* to = tile.output + static_cast<size_t>(row) * tile.row_stride + static_cast<size_t>(g) * head;
            for (int d = 0; d < head; ++d) {
                to[d] = from[d] / s.sum[q];
            }
        }
    }
}

}  // namespace tokenloom
