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
    const auto add = [&](const float* numbers) {
        for (int half = 0; half < 2; ++half) {
            Float8 v;
            load8(v, numbers + 8 * half);
            sums[half] += v * v;
        }
    };
    int64_t i = 0;
    for (; i + 16 <= columns; i += 16) {
        add(row + i);
    }
    if (i < columns) {
        float rest[16] = {};
        std::memcpy(rest, row + i, static_cast<size_t>(columns - i) * sizeof(float));
        add(rest);
    }
    const float mean = sum8(sums[0] + sums[1]) / static_cast<float>(columns);
    return 1.0f / std::sqrt(mean + epsilon);
}

void gate8(const float* gate, const float* up, float* out) {
    Float8 g, u;
    load8(g, gate);
    load8(u, up);
    const Float8 e = exp8(g < 0 ? g : -g);  // of the side where it does not overflow
    const Float8 one = splat8(1.0f);
    store8(out, g * (g < 0 ? e : one) / (one + e) * u);
}

void gate_block(const float* gate, const float* up, int count, float* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        gate8(gate + i, up + i, out + i);
    }
    if (i < count) {
        float rest[3][8] = {};
        const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
        std::memcpy(rest[0], gate + i, bytes);
        std::memcpy(rest[1], up + i, bytes);
        gate8(rest[0], rest[1], rest[2]);
        std::memcpy(out + i, rest[2], bytes);
    }
}

// To nearest, ties to even.
float to_11_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return x;
    }
    bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
    std::memcpy(&x, &bits, sizeof(bits));
    return x;
}

void write_row(const ActivationSource& source, ActivationForm form, const float* row, uint8_t* tile, int tokens, int token) {
    const float factor = source.kind == ActivationSource::normed ? inverse_norm(row, source.columns, source.epsilon) : 1.0f;
    for (int64_t at = 0; at < source.columns; at += kBlock) {
        const auto count = static_cast<int>(source.columns - at < kBlock ? source.columns - at : kBlock);
        float made[kBlock];
        const float* numbers = made;
        switch (source.kind) {
            case ActivationSource::plain:
                numbers = row + at;
                break;
            case ActivationSource::normed:
                for (int i = 0; i < count; ++i) {
                    made[i] = row[at + i] * factor * source.weight[at + i];
                }
                break;
            case ActivationSource::gated:
                gate_block(row + at, row + source.columns + at, count, made);
                break;
        }
        if (form == ActivationForm::rounded) {
            quantize_block(numbers, tile, tokens, token);
            tile += static_cast<size_t>(kRoundedBytes) * tokens;
        } else {
            auto* out = reinterpret_cast<float*>(tile) + static_cast<size_t>(at) * tokens + token;
            for (int i = 0; i < count; ++i) {
                out[static_cast<size_t>(i) * tokens] = form == ActivationForm::shortened ? to_11_bits(numbers[i]) : numbers[i];
            }
        }
    }
}

}  // namespace

void write_tiles(const ActivationSource& source, ActivationForm form, int rows, int first, int last, uint8_t* tiles) {
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
        uint8_t* data = tiles + activation_bytes(form, begin, source.columns);
        for (; row < end && row < last; ++row) {
            write_row(source, form, source.data + static_cast<size_t>(row) * source.stride, data, end - begin, row - begin);
        }
    }
}

}  // namespace tokenloom
