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

int32_t largest_of(const Int8& v) {
#ifdef __AVX2__
    __m256i eight;
    std::memcpy(&eight, &v, sizeof(v));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#else
    int32_t largest = v[0];
    for (int i = 1; i < 8; ++i) {
        largest = v[i] > largest ? v[i] : largest;
    }
    return largest;
#endif
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

// Sums of eight blocks' first and second halves.
void sum_halves(const int8_t (&blocks)[8][kBlock], Int8& first, Int8& second) {
#ifdef __AVX2__
    __m256i quads[8];  // sums of four numbers
    for (int b = 0; b < 8; ++b) {
        std::memcpy(&quads[b], blocks[b], sizeof(quads[b]));
        quads[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quads[b]), _mm256_set1_epi16(1));
    }
    __m256i fours[2];  // first halves of four blocks, then second ones
    for (int i = 0; i < 2; ++i) {
        const __m256i* q = quads + 4 * i;
        fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(q[0], q[1]), _mm256_hadd_epi32(q[2], q[3]));
    }
    const __m256i firsts = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    const __m256i seconds = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
    std::memcpy(&first, &firsts, sizeof(first));
    std::memcpy(&second, &seconds, sizeof(second));
#else
    for (int b = 0; b < 8; ++b) {
        int32_t sums[2] = {};
        for (int i = 0; i < kBlock; ++i) {
            sums[i / 16] += blocks[b][i];
        }
        first[b] = sums[0];
        second[b] = sums[1];
    }
#endif
}

constexpr int kTogether = 8;  // blocks, for vectors of their scales

// Up to kTogether blocks of a token, into a tile of so many tokens.
void quantize_blocks(const float* x, int blocks, uint8_t* tile, int tokens, int token) {
    // Magnitudes compare as integers, and a NaN is above all of them.
    int32_t largest[kTogether] = {};
    for (int b = 0; b < blocks; ++b) {
        Int8 most = {};
        for (int i = 0; i < 4; ++i) {
            Float8 values;
            load8(values, x + kBlock * b + 8 * i);
            const Int8 bits = bits_of(values) & 0x7fffffff;
            most = bits > most ? bits : most;
        }
        largest[b] = largest_of(most);
    }
    Float8 magnitudes;
    std::memcpy(&magnitudes, largest, sizeof(magnitudes));
    const Int8 zero = magnitudes < kSmallest;
    const Float8 none = {};
    const Float8 scales = zero ? none : magnitudes / 127.0f;
    const Float8 inverses = zero ? none : 127.0f / magnitudes;

    int8_t numbers[kTogether][kBlock] = {};
    for (int b = 0; b < blocks; ++b) {
        Int8 rounded[4];
        for (int i = 0; i < 4; ++i) {
            Float8 values;
            load8(values, x + kBlock * b + 8 * i);
            rounded[i] = bits_of(values * inverses[b] + kMagic) << 24 >> 24;  // the integer's low byte, with its sign
        }
        narrow(rounded, numbers[b]);
    }
    Int8 first, second;
    sum_halves(numbers, first, second);
    const Int8 sums = first + second;
    const Float8 scaled_sums = scales * __builtin_convertvector(sums, Float8);
    const Int8 starts[4] = {-8 * sums, -128 * sums, -32 * first, -32 * second};
    int32_t rest[6][kTogether];
    std::memcpy(rest[0], &scales, sizeof(rest[0]));
    std::memcpy(rest[1], &scaled_sums, sizeof(rest[1]));
    std::memcpy(rest[2], starts, sizeof(starts));

    const size_t step = size_t{4} * tokens;
    uint8_t* out = tile + size_t{4} * token;
    for (int b = 0; b < blocks; ++b) {
        for (int j = 0; j < kBlock / 4; ++j, out += step) {
            std::memcpy(out, numbers[b] + 4 * j, 4);
        }
        for (int i = 0; i < 6; ++i, out += step) {
            std::memcpy(out, &rest[i][b], 4);
        }
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

void gate(const float* gate, const float* up, int count, float* out) {
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

// Numbers `at` to `at` + `count` - 1 of a row; where they lie, or in `made`.
const float* numbers_of(const ActivationSource& source, const float* row, float factor, int64_t at, int count, float* made) {
    switch (source.kind) {
        case ActivationSource::plain:
            return row + at;
        case ActivationSource::normed:
            for (int i = 0; i < count; ++i) {
                made[i] = row[at + i] * factor * source.weight[at + i];
            }
            return made;
        case ActivationSource::gated:
            gate(row + at, row + source.columns + at, count, made);
            return made;
    }
    return nullptr;
}

void write_row(const ActivationSource& source, ActivationForm form, const float* row, int64_t first, int64_t last, uint8_t* tile, int tokens,
               int token) {
    constexpr int most = kTogether * kBlock;
    const float factor = source.kind == ActivationSource::normed ? inverse_norm(row, source.columns, source.epsilon) : 1.0f;
    for (int64_t at = first; at < last; at += most) {
        const auto count = static_cast<int>(last - at < most ? last - at : most);
        float made[most];
        const float* numbers = numbers_of(source, row, factor, at, count, made);
        if (form == ActivationForm::rounded) {
            quantize_blocks(numbers, count / kBlock, tile + activation_bytes(form, tokens, at), tokens, token);
            continue;
        }
        auto* out = reinterpret_cast<float*>(tile) + static_cast<size_t>(at) * tokens + token;
        for (int i = 0; i < count; ++i) {
            out[static_cast<size_t>(i) * tokens] = form == ActivationForm::shortened ? to_11_bits(numbers[i]) : numbers[i];
        }
    }
}

}  // namespace

void write_tile(const ActivationSource& source, ActivationForm form, int rows, int tile, int64_t first, int64_t last, uint8_t* tiles) {
    const int begin = tile_first_row(rows, tile);
    const int end = tile_first_row(rows, tile + 1);
    for (int row = begin; row < end; ++row) {
        write_row(source, form, source.data + static_cast<size_t>(row) * source.stride, first, last,
                  tiles + activation_bytes(form, begin, source.columns), end - begin, row - begin);
    }
}

}  // namespace tokenloom
