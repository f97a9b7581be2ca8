#include "graph/products.h"

#include <algorithm>

#include "kernels/activations.h"

namespace tokenloom {

namespace {

constexpr int64_t kLine = 64;     // bytes of a cache line
constexpr int64_t kAhead = 8192;  // bytes

// What kernel(out, stride) computes of `tokens` tokens from `row` on by a group of the matrix.
template <typename Kernel>
void multiply_group(const PackedMatrix& matrix, int group, int row, int tokens, const Products& products, const Kernel& kernel) {
    const int64_t begin = int64_t{group} * kGroupRows;
    const int64_t count = std::min<int64_t>(kGroupRows, matrix.rows() - begin);
    const size_t stride = products.stride;
    const size_t at = static_cast<size_t>(row) * stride + static_cast<size_t>(begin);
    float* out = products.out + at;
    if (count == kGroupRows) {
        kernel(out, stride);
    } else {
        float whole[kChunkTokens * kGroupRows];
        kernel(whole, size_t{kGroupRows});
        for (int t = 0; t < tokens; ++t) {
            std::copy_n(whole + t * kGroupRows, count, out + t * stride);
        }
    }
    if (!products.end.nothing()) {
        Epilogue end = products.end;
        end.bias = end.bias == nullptr ? nullptr : end.bias + begin;
        end.added = end.added == nullptr ? nullptr : end.added + at;
        finish(end, out, stride, tokens, static_cast<int>(count));
    }
}

}  // namespace

void multiply_item(const Kernels& kernels, const PackedMatrix& matrix, int first, int last, const uint8_t* tiles, int rows, int first_tile,
                   int last_tile, const uint8_t* arranged, const Products& products) {
    const auto format = static_cast<int>(matrix.format());
    const int tile_count = last_tile - first_tile;
    const auto bytes = static_cast<int64_t>(matrix.group_bytes());
    const uint8_t* const end = matrix.data() + matrix.bytes();
    for (int g = first; g < last; ++g) {
        const PackedGroup group = matrix.group(g);
        // While the tiles' products with this group are computed the next one is on its way, which else would be waited for. One
        // tile reads the group as quickly as it comes, and asks for what lies a little further on.
        const uint8_t* next = group.data + (tile_count == 1 ? std::min(kAhead, bytes) : bytes);
        const int64_t next_bytes = std::min<int64_t>(bytes, end - next);
        if (arranged != nullptr) {
            const int row = tile_first_row(rows, first_tile);
            const int tokens = tile_first_row(rows, last_tile) - row;
            multiply_group(matrix, g, row, tokens, products, [&](float* out, size_t stride) {
                kernels.many->multiply[format](group, arranged, tokens, out, stride, {next, next + next_bytes});
            });
            continue;
        }
        for (int tile = first_tile; tile < last_tile; ++tile) {
            const int row = tile_first_row(rows, tile);
            const int tokens = tile_first_row(rows, tile + 1) - row;
            const uint8_t* tile_data = tiles + activation_bytes(matrix.form(), row, matrix.columns());
            const auto cut = [&](int i) { return next + next_bytes * i / tile_count / kLine * kLine; };
            const Fetch fetch{cut(tile - first_tile), cut(tile - first_tile + 1)};
            multiply_group(matrix, g, row, tokens, products, [&](float* out, size_t stride) {
                kernels.multiply[format](group, tile_data, tokens, out, stride, fetch);
            });
        }
    }
}

}  // namespace tokenloom
