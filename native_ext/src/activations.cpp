// Built like attention.cpp, for what ggml itself requires of the CPU; the loops are written so that compilers vectorize
// them.

#include "activations.h"

#include <cstring>

namespace tokenloom {

namespace {

constexpr float kSmallest = 1e-30f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even

void quantize_block(const float* x, uint8_t* block, int tokens, int token) {
    // Magnitudes compare as integers, and a NaN is above all of them.
    int32_t largest = 0;
    for (int i = 0; i < kBlock; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof(magnitude));
    const bool zero = magnitude < kSmallest;
    const float scale = zero ? 0.0f : magnitude / 127.0f;
    const float inverse = zero ? 0.0f : 127.0f / magnitude;

    int8_t numbers[kBlock];
    int32_t sum = 0;
    for (int i = 0; i < kBlock; ++i) {
        const float shifted = x[i] * inverse + kMagic;
        uint32_t bits;
        std::memcpy(&bits, &shifted, sizeof(bits));
        const auto number = static_cast<int8_t>(bits);
        numbers[i] = number;
        sum += number;
    }
    for (int j = 0; j < kBlock / 4; ++j) {
        std::memcpy(block + (static_cast<size_t>(j) * tokens + token) * 4, numbers + 4 * j, 4);
    }
    const float scaled_sum = scale * static_cast<float>(sum);
    const int32_t starts[2] = {-8 * sum, -128 * sum};
    uint8_t* rest = block + (size_t{kBlock} * tokens + size_t{4} * token);
    const size_t step = size_t{4} * tokens;
    std::memcpy(rest, &scale, 4);
    std::memcpy(rest + step, &scaled_sum, 4);
    std::memcpy(rest + 2 * step, &starts[0], 4);
    std::memcpy(rest + 3 * step, &starts[1], 4);
}

}  // namespace

void quantize_row(const float* row, int64_t columns, uint8_t* tile, int tokens, int token) {
    const size_t step = static_cast<size_t>(kTileBytes) * tokens;
    for (int64_t i = 0; i < columns; i += kBlock, tile += step) {
        quantize_block(row + i, tile, tokens, token);
    }
}

void quantize_rows(const float* x, int rows, int64_t columns, int first, int last, uint8_t* tiles) {
    if (first >= last) {
        return;
    }
    int tile = 0;
    while (tile_first_row(rows, tile + 1) <= first) {
        ++tile;
    }
    for (int row = first; row < last; ++tile) {
        const int begin = tile_first_row(rows, tile);
        const int end = tile_first_row(rows, tile + 1);
        for (; row < end && row < last; ++row) {
            quantize_row(x + static_cast<size_t>(row) * columns, columns, tiles + activation_bytes(begin, columns), end - begin, row - begin);
        }
    }
}

}  // namespace tokenloom
