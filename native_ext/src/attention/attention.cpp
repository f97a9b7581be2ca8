// Built like the portable kernels, with fused multiply-add as an instruction where the CPU has it.

#include "attention/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "attention/attention_check.h"
#include "kernels/kernel_table.h"
#include "kernels/power_of_two.h"

namespace tokenloom {

namespace {

constexpr float kLog2E = 1.44269504f;

// One span's (m, l, o) of a tile's queries.
struct Results {
    Results(float* at, int queries, int padded)
        : output(at), maximum(at + static_cast<size_t>(queries) * padded), sum(maximum + queries) {}
    float* output;   // [queries][padded]
    float* maximum;  // [queries]
    float* sum;      // [queries]
};

// As in the kernels.
float power_of_two(float x) {
    if (x < kLowestPower) {
        return 0.0f;
    }
    const float shifted = x + kRoundingShift;
    const float rest = x - (shifted - kRoundingShift);
    float p = kPowerPolynomial[5];
    for (int i = 4; i >= 0; --i) {
        p = std::fma(p, rest, kPowerPolynomial[i]);
    }
    return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
}

// Adds a later span's results of one query to those before.
void combine(const Results& total, const Results& span, int query, int padded) {
    const float both = span.maximum[query] > total.maximum[query] ? span.maximum[query] : total.maximum[query];
    const float before = power_of_two(total.maximum[query] - both);
    const float now = power_of_two(span.maximum[query] - both);
    total.maximum[query] = both;
    total.sum[query] = std::fma(span.sum[query], now, total.sum[query] * before);
    float* to = total.output + static_cast<size_t>(query) * padded;
    const float* from = span.output + static_cast<size_t>(query) * padded;
    for (int d = 0; d < padded; ++d) {
        to[d] = std::fma(from[d], now, to[d] * before);
    }
}

// The first span that a row reads.
int first_span_of(const AttentionShape& shape, int position) { return shape.first_seen(position) / (kSpanPages * kPageSize); }

// Writes a query's output into the batch's.
void finish(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head, const Results& total, int query) {
    const int group = work.shape.group();
    const int size = work.shape.value_size;
    const size_t row = static_cast<size_t>(work.plan.rows[static_cast<size_t>(tile.first_row + query / group)].row);
    const size_t head = static_cast<size_t>(kv_head) * group + query % group;
    float* to = work.output + (row * work.shape.heads + head) * size;
    const float* from = total.output + static_cast<size_t>(query) * work.shape.padded();
    float whole = 1.0f / total.sum[query];
    if (work.sinks != nullptr) {
        const float sink = work.sinks[head] * kLog2E;
        const float both = sink > total.maximum[query] ? sink : total.maximum[query];
        const float own = power_of_two(total.maximum[query] - both);
        whole = own / std::fma(total.sum[query], own, power_of_two(sink - both));
    }
    for (int d = 0; d < size; ++d) {
        to[d] = from[d] * whole;
    }
}

// The tile's queries of the group, turned and scaled.
void load_queries(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head, float* to) {
    const int size = work.shape.key_size;
    const int group = work.shape.group();
    // Scores are exponents of 2.
    const float scale = kLog2E / work.divisor;
    for (int i = 0; i < tile.rows; ++i) {
        const auto row = static_cast<size_t>(work.plan.rows[static_cast<size_t>(tile.first_row + i)].row);
        const float* from = work.query + row * work.query_stride + static_cast<size_t>(kv_head) * group * size;
        for (int head = 0; head < group; ++head, from += size, to += size) {
            work.turn.make(from, row, kv_head * group + head, size, scale, to);
        }
    }
}

// What the span's first page is for the tile.
Ahead first_keys(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head, int span) {
    const AttentionPlan::Row* rows = work.plan.rows.data() + tile.first_row;
    const int page = span * kSpanPages;
    for (int i = 0; i < tile.rows; ++i) {
        if (rows[i].position >= page * kPageSize && first_span_of(work.shape, rows[i].position) <= span) {
            const int seen = tile.rows > 1 ? kPageSize : std::min(kPageSize, rows[i].position - page * kPageSize + 1);
            const Page number = work.runs[static_cast<size_t>(rows[i].run)].pages[static_cast<size_t>(page)];
            return {work.pool.view(number, work.layer, kv_head).keys, seen};
        }
    }
    return {};
}

// The results of one span for all rows of the tile that reach it. `after`: what is read behind it.
void attend_span(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head, int span, const Results& results,
                 AttentionScratch& scratch, const Ahead& after) {
    const int group = work.shape.group();
    const int queries = tile.rows * group;
    const int padded = work.shape.padded();
    const AttentionPlan::Row* rows = work.plan.rows.data() + tile.first_row;
    std::fill_n(results.output, static_cast<size_t>(queries) * padded, 0.0f);
    std::fill_n(results.maximum, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(results.sum, queries, 0.0f);
    const auto kernel = work.kernels.attend_page[static_cast<int>(work.pool.type())];
    PageTask task{};
    task.key_size = work.shape.key_size;
    task.value_size = work.shape.value_size;
    task.cap = work.cap * kLog2E;
    task.padded = padded;
    task.wide_keys = scratch.keys;
    task.wide_values = scratch.values;
    task.scores = scratch.scores;
    // A page's task runs when the next is known, so that its cells can be fetched ahead.
    const auto run = [&](const Ahead& next) {
        if (task.queries > 0) {
            task.next = next.keys;
            task.next_positions = next.positions;
            kernel(task);
        }
    };
    for (int page = span * kSpanPages; page < (span + 1) * kSpanPages; ++page) {
        for_each_page(work.plan, tile, work.runs, page, [&](Page number, int first, int count) {
            const PageView view = work.pool.view(number, work.layer, kv_head);
            run({view.keys, count > 1 ? kPageSize : std::min(kPageSize, rows[first].position - page * kPageSize + 1)});
            const size_t query = static_cast<size_t>(first) * group;
            for (int i = 0; i < count; ++i) {
                const int seen = std::min(kPageSize, rows[first + i].position - page * kPageSize + 1);
                const int unseen = std::max(0, work.shape.first_seen(rows[first + i].position) - page * kPageSize);
                std::fill_n(scratch.visible.data() + query + static_cast<size_t>(i) * group, group, seen);
                std::fill_n(scratch.hidden.data() + query + static_cast<size_t>(i) * group, group, unseen);
            }
            task.page = view;
            task.queries = count * group;
            task.query = scratch.queries + query * work.shape.key_size;
            task.visible = scratch.visible.data() + query;
            task.hidden = scratch.hidden.data() + query;
            task.maximum = results.maximum + query;
            task.sum = results.sum + query;
            task.output = results.output + query * padded;
        });
    }
    run(after);
}

}  // namespace

std::span<const AttentionKernels* const> all_attention_kernels() {
    static constexpr std::array all = {
        &kPortableAttention,
#ifdef TOKENLOOM_X86_KERNELS
        &kAvx2Attention,
        &kAvx512Attention,
#endif
    };
    return all;
}

const AttentionKernels& attention_kernels_of(const Kernels* kernels, std::span<const AttentionKernels* const> candidates) {
    const std::string_view multiplying = kernels == nullptr ? "" : kernels->name;
    const std::string_view name = multiplying == "avxvnni" ? "avx2" : multiplying;  // which has no more for attention
    const AttentionKernels* best = &kPortableAttention;
    for (const AttentionKernels* candidate : candidates) {
        if (works(*candidate)) {
            best = candidate;
            if (name == candidate->name) {
                break;
            }
        }
    }
    return *best;
}

AttentionScratch::AttentionScratch(std::span<const AttentionShape> shapes) {
    constexpr size_t line = kMostLanes;  // floats
    std::array<size_t, 5> sizes{};
    size_t most_queries = 0;
    for (const AttentionShape& shape : shapes) {
        const auto most = static_cast<size_t>(std::max(kTileQueries, shape.group()));
        most_queries = std::max(most_queries, most);
        const std::array<size_t, 5> needed = {static_cast<size_t>(shape.key_size) * kPageSize, static_cast<size_t>(shape.padded()) * kPageSize,
                                              size_t{2} * kMostTogether * kPageSize, most * shape.key_size,
                                              2 * span_floats(static_cast<int>(most), shape.padded())};
        std::transform(sizes.begin(), sizes.end(), needed.begin(), sizes.begin(), [](size_t a, size_t b) { return std::max(a, b); });
    }
    visible.resize(most_queries);
    hidden.resize(most_queries);
    size_t floats = line;
    for (const size_t size : sizes) {
        floats += (size + line - 1) / line * line;
    }
    memory.resize(floats);
    float* at = memory.data();
    at += (line - reinterpret_cast<uintptr_t>(at) / sizeof(float) % line) % line;
    float** const places[] = {&keys, &values, &scores, &queries, &results};
    for (size_t i = 0; i < sizes.size(); ++i) {
        *places[i] = at;
        at += (sizes[i] + line - 1) / line * line;
    }
}

Ahead first_keys(const AttentionWork& work, const AttentionPlan::Item& item, int kv_head) {
    return first_keys(work, work.plan.tiles[static_cast<size_t>(item.tile)], kv_head, item.first_span);
}

void attend(const AttentionWork& work, const AttentionPlan::Item& item, int kv_head, AttentionScratch& scratch, const Ahead& after) {
    const AttentionPlan::Tile& tile = work.plan.tiles[static_cast<size_t>(item.tile)];
    const int group = work.shape.group();
    const int padded = work.shape.padded();
    const int queries = tile.rows * group;
    const size_t floats = span_floats(queries, padded);
    load_queries(work, tile, kv_head, scratch.queries);
    const auto behind = [&](int span) { return span + 1 < item.last_span ? first_keys(work, tile, kv_head, span + 1) : after; };
    if (tile.pieces > 1) {
        float* head = work.stored + tile.stored + static_cast<size_t>(kv_head) * tile.stored_head;
        for (int span = item.first_span; span < item.last_span; ++span) {
            attend_span(work, tile, kv_head, span, Results(head + static_cast<size_t>(span - tile.first_span) * floats, queries, padded), scratch,
                        behind(span));
        }
        return;
    }
    const Results total(scratch.results, queries, padded);
    const Results one(scratch.results + floats, queries, padded);
    attend_span(work, tile, kv_head, tile.first_span, total, scratch, behind(tile.first_span));
    for (int span = tile.first_span + 1; span < tile.spans; ++span) {
        attend_span(work, tile, kv_head, span, one, scratch, behind(span));
        for (int query = 0; query < queries; ++query) {
            const int position = work.plan.rows[static_cast<size_t>(tile.first_row + query / group)].position;
            if (position >= span * kSpanPages * kPageSize && first_span_of(work.shape, position) <= span) {
                combine(total, one, query, padded);
            }
        }
    }
    for (int query = 0; query < queries; ++query) {
        finish(work, tile, kv_head, total, query);
    }
}

void gather(const AttentionWork& work, const AttentionPlan::Tile& tile, int kv_head) {
    const int group = work.shape.group();
    const int padded = work.shape.padded();
    const int queries = tile.rows * group;
    const size_t floats = span_floats(queries, padded);
    float* head = work.stored + tile.stored + static_cast<size_t>(kv_head) * tile.stored_head;
    const Results total(head, queries, padded);
    for (int query = 0; query < queries; ++query) {
        const int position = work.plan.rows[static_cast<size_t>(tile.first_row + query / group)].position;
        const int first = std::max(tile.first_span + 1, first_span_of(work.shape, position));
        for (int span = first; span <= position / (kSpanPages * kPageSize); ++span) {
            combine(total, Results(head + static_cast<size_t>(span - tile.first_span) * floats, queries, padded), query, padded);
        }
        finish(work, tile, kv_head, total, query);
    }
}

}  // namespace tokenloom
