// Built like attention.cpp, for what ggml itself requires of the CPU; the loops are written so that compilers vectorize
// them.

#include "activations.h"

#include <cmath>
#include <cstring>

#include "vector8.h"

namespace tokenloom {

namespace {

constexpr float kSmallest = 1e-30f;
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even

Int8 bits_of(const Float8& v) {
    Int8 bits;
    std::memcpy(&bits, &v, sizeof(bits));
    return bits;
}

int32_t total(const Int8& v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// What fits int8, in order. Spelled out where compilers would take the lanes one by one.
void narrow(const Int8 (&wide)[4], int8_t* out) {
#ifdef __AVX2__
    __m256i w[4];
    std::memcpy(w, wide, sizeof(w));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    std::memcpy(out, &ordered, sizeof(ordered));
#else
    for (int i = 0; i < kBlock; ++i) {
        out[i] = static_cast<int8_t>(wide[i / 8][i % 8]);
    }
#endif
}

void quantize_block(const float* x, uint8_t* block, int tokens, int token) {
    // Magnitudes compare as integers, and a NaN is above all of them.
    Float8 values[4];
    Int8 most = {};
    for (int i = 0; i < 4; ++i) {
        load8(values[i], x + 8 * i);
        const Int8 bits = bits_of(values[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    int32_t largest = 0;
    for (int i = 0; i < 8; ++i) {
        largest = most[i] > largest ? most[i] : largest;
    }
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof(magnitude));
    const bool zero = magnitude < kSmallest;
    const float scale = zero ? 0.0f : magnitude / 127.0f;
    const float inverse = zero ? 0.0f : 127.0f / magnitude;

    Int8 rounded[4];
    for (int i = 0; i < 4; ++i) {
        rounded[i] = bits_of(values[i] * inverse + kMagic) << 24 >> 24;  // the integer's low byte, with its sign
    }
    const Int8 first = rounded[0] + rounded[1];
    const Int8 second = rounded[2] + rounded[3];
    int8_t numbers[kBlock];
    narrow(rounded, numbers);
    const int32_t halves[2] = {total(first), total(second)};
    const int32_t sum = halves[0] + halves[1];
    for (int j = 0; j < kBlock / 4; ++j) {
        std::memcpy(block + (static_cast<size_t>(j) * tokens + token) * 4, numbers + 4 * j, 4);
    }
    const float scaled_sum = scale * static_cast<float>(sum);
    const int32_t starts[4] = {-8 * sum, -128 * sum, -32 * halves[0], -32 * halves[1]};
    uint8_t* rest = block + (size_t{kBlock} * tokens + size_t{4} * token);
    const size_t step = size_t{4} * tokens;
    std::memcpy(rest, &scale, 4);
    std::memcpy(rest + step, &scaled_sum, 4);
    for (int i = 0; i < 4; ++i) {
        std::memcpy(rest + (2 + i) * step, &starts[i], 4);
    }
}

// 1 / sqrt(mean(row^2) + epsilon), squares summed in 16 lanes and these in a fixed tree.
float inverse_norm(const float* row, int64_t columns, float epsilon) {
    Float8 sums[2] = {splat8(0.0f), splat8(0.0f)};
    for (int64_t i = 0; i < columns; i += 16) {
        for (int half = 0; half < 2; ++half) {
            Float8 v;
            load8(v, row + i + 8 * half);
            sums[half] += v * v;
        }
    }
    const float mean = sum8(sums[0] + sums[1]) / static_cast<float>(columns);
    return 1.0f / std::sqrt(mean + epsilon);
}

void gate_block(const float* gate, const float* up, float* out) {
    for (int i = 0; i < kBlock; i += 8) {
        Float8 g, u;
        load8(g, gate + i);
        load8(u, up + i);
        const Float8 e = exp8(g < 0 ? g : -g);  // of the side where it does not overflow
        const Float8 one = splat8(1.0f);
        store8(out + i, g * (g < 0 ? e : one) / (one + e) * u);
    }
}

void quantize_row(const ActivationSource& source, const float* row, uint8_t* tile, int tokens, int token) {
    const float factor = source.kind == ActivationSource::normed ? inverse_norm(row, source.columns, source.epsilon) : 1.0f;
    const size_t step = static_cast<size_t>(kTileBytes) * tokens;
    for (int64_t at = 0; at < source.columns; at += kBlock, tile += step) {
        float numbers[kBlock];
        switch (source.kind) {
            case ActivationSource::plain:
                quantize_block(row + at, tile, tokens, token);
                continue;
            case ActivationSource::normed:
                for (int i = 0; i < kBlock; ++i) {
                    numbers[i] = row[at + i] * factor * source.weight[at + i];
                }
                break;
            case ActivationSource::gated:
                gate_block(row + at, row + source.columns + at, numbers);
                break;
        }
        quantize_block(numbers, tile, tokens, token);
    }
}

}  // namespace

void quantize_rows(const ActivationSource& source, int rows, int first, int last, uint8_t* tiles) {
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
        uint8_t* data = tiles + activation_bytes(begin, source.columns);
        for (; row < end && row < last; ++row) {
            quantize_row(source, source.data + static_cast<size_t>(row) * source.stride, data, end - begin, row - begin);
        }
    }
}

}  // namespace tokenloom
