// Products of a packed matrix with tiles of activations: the piece of work that nodes share out.

#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/epilogue.h"
#include "kernels/kernels.h"
#include "packing/packed_matrix.h"

namespace tokenloom {

constexpr int kChunkTiles = 12;       // of a piece of work
constexpr int kChunkTokens = kChunkTiles * kTileTokens;

// Where the products of a matrix with all tokens go: its first row for token 0, and the floats from one token to the next. What
// `end` adds lies as `out` does.
struct Products {
    float* out;
    size_t stride;
    Epilogue end;
};

// Groups `first` to `last` - 1 of the matrix by tiles `first_tile` to `last_tile` - 1 of `rows` tokens, at most kChunkTiles.
// `arranged`: these, for products of many tokens, or null.
void multiply_item(const Kernels& kernels, const PackedMatrix& matrix, int first, int last, const uint8_t* tiles, int rows, int first_tile,
                   int last_tile, const uint8_t* arranged, const Products& products);

}  // namespace tokenloom
