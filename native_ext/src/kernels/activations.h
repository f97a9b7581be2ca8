// Activations as the multiplication kernels read them, in tiles: rounded to int8 in blocks of 32, or as they are
// (packed_layout.h).
//
// Two computations that come before a multiplication can be done on the way, which saves a pass over memory and a barrier:
// the normalization by the root mean square, and the gated activation of the feed-forward.
// A token's numbers depend on nothing but its own row, and are the same bits on every instruction set.
// When rounded, a block's scale is its largest magnitude / 127, its numbers are x / scale rounded to nearest, ties to even. A block
// with a number that is not finite has a scale that is not (infinity, or NaN if one is NaN) and numbers of 0, so that it shows in
// every product; a block below 1e-30 is zero.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/packed_layout.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

struct Kernels;

// What was built, the slowest first; some may not be usable.
std::span<const RowKernels* const> all_row_kernels();

// Those for the instruction set of the multiplication kernels, which check_kernels() tries as well; the portable ones if null.
const RowKernels& row_kernels_of(const Kernels* kernels);

// `rows` tokens are cut into tiles as even as they can be, which follow each other without gaps.
inline int tile_count(int rows) { return (rows + kTileTokens - 1) / kTileTokens; }

// 0 <= tile <= tile_count(rows).
inline int tile_first_row(int rows, int tile) { return static_cast<int>(int64_t{rows} * tile / tile_count(rows)); }

// Bytes of so many tokens with `columns` numbers each, for the rounded form a multiple of 32; also where the tile after them
// begins.
inline size_t activation_bytes(ActivationForm form, int rows, int64_t columns) {
    const auto size = static_cast<size_t>(columns);
    return static_cast<size_t>(rows) * (form == ActivationForm::rounded ? size / kBlock * kRoundedBytes : size * sizeof(float));
}

// Writes columns `first` to `last` - 1 of a tile of `rows` tokens to their place in the tiles of all rows; `first` and, unless
// it is the end, `last` are multiples of 32. Threads that share a tile write distant parts of it, not tokens side by side.
void write_tile(const RowKernels& kernels, const ActivationSource& source, ActivationForm form, int rows, int tile, int64_t first,
                int64_t last, uint8_t* tiles);

// All of them.
inline void write_tiles(const RowKernels& kernels, const ActivationSource& source, ActivationForm form, int rows, uint8_t* tiles) {
    for (int tile = 0; tile < tile_count(rows); ++tile) {
        write_tile(kernels, source, form, rows, tile, 0, source.columns, tiles);
    }
}

}  // namespace tokenloom
