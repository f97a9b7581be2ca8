#include "attention/attention_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tokenloom {

namespace {

constexpr int kLeastTileQueries = 48;  // fewer would not pay for widening a page
constexpr int kItemsPerThread = 4;
constexpr int kLeastPortions = 16;     // of a thread
constexpr int kMostAtOnce = 64;
constexpr int64_t kPageCost = 4;       // reading a page, in queries that go through it

int spans_of(int position) { return position / (kPageSize * kSpanPages) + 1; }

// How many pages two runs have in common from the beginning.
size_t shared_pages(const Run& a, const Run& b) {
    return static_cast<size_t>(std::mismatch(a.pages.begin(), a.pages.end(), b.pages.begin(), b.pages.end()).first - a.pages.begin());
}

// Runs so ordered that those sharing pages adjoin.
std::vector<int> by_pages(std::span<const Run> runs) {
    std::vector<int> order(runs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
        const Run& a = runs[static_cast<size_t>(x)];
        const Run& b = runs[static_cast<size_t>(y)];
        const auto common = static_cast<std::ptrdiff_t>(shared_pages(a, b));
        if (a.pages.begin() + common == a.pages.end() || b.pages.begin() + common == b.pages.end()) {
            return a.pages.size() != b.pages.size() ? a.pages.size() < b.pages.size() : a.first_position < b.first_position;
        }
        return a.pages[static_cast<size_t>(common)] < b.pages[static_cast<size_t>(common)];
    });
    return order;
}

}  // namespace

AttentionPlan plan_attention(std::span<const Run> runs, const AttentionShape& shape, int threads) {
    AttentionPlan plan;
    plan.shape = shape;
    int total_rows = 0;
    for (const Run& run : runs) {
        total_rows += run.rows;
    }
    const int group = shape.group();
    const int most_rows = std::max(1, kTileQueries / group);
    const int even = total_rows * shape.kv_heads / (threads * kItemsPerThread);
    const int cut_rows = std::clamp(even, std::max(1, kLeastTileQueries / group), most_rows);  // of long runs

    std::vector<int64_t> costs;  // by tile
    const auto add_rows = [&](int index, int first, int count, int64_t own_pages) {
        const Run& run = runs[static_cast<size_t>(index)];
        const int begin = run.first_position + first;
        for (int i = 0; i < count; ++i) {
            plan.rows.push_back({run.first_row + first + i, begin + i, index});
        }
        AttentionPlan::Tile& tile = plan.tiles.back();
        tile.rows += count;
        tile.first_span = std::min(tile.first_span, spans_of(shape.first_seen(begin)) - 1);
        tile.spans = std::max(tile.spans, spans_of(begin + count - 1));
        const int middle = begin + count / 2;
        costs.back() += int64_t{count} * group * (middle / kPageSize - shape.first_seen(middle) / kPageSize + 1) + own_pages * kPageCost;
    };
    const auto new_tile = [&] {
        plan.tiles.push_back({static_cast<int>(plan.rows.size()), 0, std::numeric_limits<int>::max(), 0, 1, 0, 0});
        costs.push_back(0);
    };
    const Run* before = nullptr;  // in the tile being filled
    for (const int index : by_pages(runs)) {
        const Run& run = runs[static_cast<size_t>(index)];
        // That `rows` rows from the `first` on read.
        const auto pages = [&](int first, int rows) {
            return (run.first_position + first + rows - 1) / kPageSize - shape.first_seen(run.first_position + first) / kPageSize + 1;
        };
        if (run.rows > cut_rows) {
            const int cuts = (run.rows + cut_rows - 1) / cut_rows;
            for (int i = 0; i < cuts; ++i) {
                const int first = static_cast<int>(int64_t{run.rows} * i / cuts);
                const int end = static_cast<int>(int64_t{run.rows} * (i + 1) / cuts);
                new_tile();
                add_rows(index, first, end - first, pages(first, end - first));
            }
            before = nullptr;
            continue;
        }
        const size_t shared = before == nullptr ? 0 : shared_pages(*before, run);
        const bool joins = shared > 0 && plan.tiles.back().rows + run.rows <= most_rows;
        if (!joins) {
            new_tile();
        }
        // A run that is followed by another one of its sequence has more pages than it reads.
        add_rows(index, 0, run.rows, std::max<int64_t>(0, pages(0, run.rows) - (joins ? static_cast<int64_t>(shared) : 0)));
        before = &run;
    }

    const int64_t whole = std::accumulate(costs.begin(), costs.end(), int64_t{0}) * shape.kv_heads;
    const int64_t fair = threads == 1 ? whole : std::max<int64_t>(1, whole / (int64_t{threads} * kItemsPerThread));
    std::vector<std::pair<int64_t, AttentionPlan::Item>> items;
    const size_t tiles = plan.tiles.size();
    for (size_t i = 0; i < tiles; ++i) {
        AttentionPlan::Tile& tile = plan.tiles[i];
        const int64_t cost = costs[i];
        const int64_t wanted = (cost + fair - 1) / fair;
        const int spans = tile.spans - tile.first_span;
        const size_t head_floats = static_cast<size_t>(spans) * span_floats(tile.rows * group, shape.padded());
        if (wanted > 1 && spans > 1 && plan.stored_floats + head_floats * shape.kv_heads <= kMostStored) {
            tile.pieces = static_cast<int>(std::min<int64_t>(spans, wanted));
            tile.stored = plan.stored_floats;
            tile.stored_head = head_floats;
            plan.stored_floats += head_floats * shape.kv_heads;
            for (int piece = 0; piece < tile.pieces; ++piece) {
                const auto cut = [&](int at) { return tile.first_span + static_cast<int>(int64_t{spans} * at / tile.pieces); };
                items.push_back({cost * (cut(piece + 1) - cut(piece)) / spans, {static_cast<int>(i), cut(piece), cut(piece + 1)}});
            }
            continue;
        }
        // Whole, or into tiles of fewer rows, each of which reads the pages.
        const auto slices = static_cast<int>(std::clamp<int64_t>(std::min(tile.rows, tile.rows * group / kLeastTileQueries), 1, wanted));
        const AttentionPlan::Tile all = tile;
        for (int slice = 0; slice < slices; ++slice) {
            const int first = all.rows * slice / slices;
            AttentionPlan::Tile part = all;
            part.first_row += first;
            part.rows = all.rows * (slice + 1) / slices - first;
            const size_t at = slice == 0 ? i : plan.tiles.size();
            if (slice == 0) {
                plan.tiles[i] = part;
            } else {
                plan.tiles.push_back(part);
            }
            items.push_back({cost / slices, {static_cast<int>(at), part.first_span, part.spans}});
        }
    }
    std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [cost, item] : items) {
        plan.items.push_back(item);
    }
    if (!items.empty()) {
        plan.most_at_once = static_cast<int>(std::clamp<int64_t>(whole / (threads * kLeastPortions * items[0].first), 1, kMostAtOnce));
    }
    return plan;
}

}  // namespace tokenloom
