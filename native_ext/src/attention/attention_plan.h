// How one forward's attention is cut into work: integers only, made once and used by every layer.
//
// Rows are gathered into tiles, whose queries go through the pages in order together: a run of many rows is cut into
// tiles of its own; short runs that begin with the same page (clones, a tree of them of any depth) share a tile, so that
// a page they share is read and widened once for all of them. Which runs share pages is seen from the pages themselves.
// Each tile is an item of work for each KV head. Where an item would be too large a part of the whole for the threads to
// end together, it is cut at spans of pages, whose results are stored and combined at the end (attention_kernel.h: the
// same bits); that storage is bounded, and a tile that would exceed it is cut at rows instead, each part reading its pages.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_kernel.h"
#include "cache/batch.h"

namespace tokenloom {

// Layers of one shape share a plan.
struct AttentionShape {
    int heads;
    int kv_heads;
    int key_size;
    int value_size;
    int window = 0;  // positions that a query sees, its own included; 0: all
    int group() const { return heads / kv_heads; }  // query heads per KV head
    int padded() const { return (value_size + kMostLanes - 1) / kMostLanes * kMostLanes; }
    // The first position that a query at `position` sees.
    int first_seen(int position) const { return window == 0 || position < window ? 0 : position - window + 1; }
    bool operator==(const AttentionShape&) const = default;
};

struct AttentionPlan {
    struct Row {
        int row;       // of the batch
        int position;
        int run;       // of the batch
    };
    struct Tile {
        int first_row;      // of `rows`
        int rows;
        int first_span;     // that a row of it reads, and
        int spans;          // one past the last
        int pieces;         // items it is cut into; 1: whole
        size_t stored;      // if cut: where in the storage its results begin, and
        size_t stored_head; // floats for one KV head
    };
    struct Item {
        int tile;
        int first_span;
        int last_span;      // one past it
    };

    AttentionShape shape;
    std::vector<Row> rows;
    std::vector<Tile> tiles;
    std::vector<Item> items;    // for each KV head, the most costly first
    size_t stored_floats = 0;
    int most_at_once = 1;       // items, so that threads still end together
};

// Floats of one span's results for so many queries: outputs [queries][padded], maxima, sums.
inline size_t span_floats(int queries, int padded) {
    return (static_cast<size_t>(queries) * (padded + 2) + kMostLanes - 1) / kMostLanes * kMostLanes;
}

constexpr int kTileQueries = 192;                      // most of a tile, unless one row has more
constexpr size_t kMostStored = size_t{8} << 20;        // floats

AttentionPlan plan_attention(std::span<const Run> runs, const AttentionShape& shape, int threads);

// Calls visit(page, first, count) for groups of adjoining rows of the tile (`first` counts within it) that read the same
// page as their `index`-th; rows whose position lies before that page, or whose window begins behind it, are left out.
template <typename Visit>
void for_each_page(const AttentionPlan& plan, const AttentionPlan::Tile& tile, std::span<const Run> runs, int index, Visit&& visit) {
    const AttentionPlan::Row* rows = plan.rows.data() + tile.first_row;
    const auto reads = [&](int i) {
        return rows[i].position / kPageSize >= index && plan.shape.first_seen(rows[i].position) / kPageSize <= index;
    };
    const auto page = [&](int i) { return runs[static_cast<size_t>(rows[i].run)].pages[static_cast<size_t>(index)]; };
    for (int first = 0; first < tile.rows;) {
        if (!reads(first)) {
            ++first;
            continue;
        }
        const Page shared = page(first);
        int end = first + 1;
        while (end < tile.rows && reads(end) && page(end) == shared) {
            ++end;
        }
        visit(shared, first, end - first);
        first = end;
    }
}

}  // namespace tokenloom
