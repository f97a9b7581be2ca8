// AVX2: half a group (eight rows) in a vector, products of bytes in pairs of int16.
//
// nibbles: a pair is at most 2 * 15 * 127 = 3,810, so the eight of a block fit int16, and are widened once.
// bytes: unsigned bytes would not fit, so the sign moves from the weight to the activation: |w| <= 128 and |a| <= 127 give
// at most 32,512 a pair. The sum then is that of signed weights, and needs no start.
// halves: a pair is at most 2 * 63 * 127 = 16,002, so two fit int16.

#include <immintrin.h>

#include "cpu_features.h"
#include "kernel_table.h"

namespace tokenloom {

namespace {

constexpr int kMostTogether = 4;

constexpr bool is_nibbles(PackedFormat format) {
    return format == PackedFormat::nibbles_centred || format == PackedFormat::nibbles_minimum;
}

constexpr bool has_minimum(PackedFormat format) {
    return format == PackedFormat::nibbles_minimum || format == PackedFormat::bytes_minimum;
}

inline __attribute__((always_inline)) __m256i load(const uint8_t* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

inline __attribute__((always_inline)) __m256 widen(const uint16_t* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

// Rows 8 * half to 8 * half + 7; tokens `first` to `first` + N - 1 of a tile of T.
template <PackedFormat format, int N>
void multiply(const PackedGroup& group, int half, const uint8_t* tile, int T, int first, float* out, size_t stride) {
    __m256 acc[N];
    for (int t = 0; t < N; ++t) {
        acc[t] = _mm256_setzero_ps();
    }
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t* quants = group.quants + 32 * half;
    for (int b = 0; b < group.blocks; ++b, tile += static_cast<size_t>(kTileBytes) * T) {
        const auto* numbers = reinterpret_cast<const int32_t*>(tile) + first;  // four at a time
        const auto* scale = reinterpret_cast<const float*>(tile) + 8 * T + first;
        const float* scaled_sum = scale + T;
        const size_t lane = static_cast<size_t>(b) * kGroupRows + 8 * half;
        const __m256 scales = widen(group.scales + lane);
        if constexpr (format == PackedFormat::bytes_halves) {
            const __m256 others = widen(group.minimums + lane);
            for (int part = 0; part < 2; ++part, quants += 256) {
                const int32_t* start = reinterpret_cast<const int32_t*>(tile) + (12 + part) * T + first;
                __m256i sums[N];
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm256_set1_epi32(start[t]);
                }
                for (int j = 0; j < 4; j += 2) {
                    const __m256i w = load(quants + 64 * j);
                    const __m256i v = load(quants + 64 * (j + 1));
                    const int32_t* four = numbers + (4 * part + j) * T;
                    for (int t = 0; t < N; ++t) {
                        const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w, _mm256_set1_epi32(four[t])),
                                                               _mm256_maddubs_epi16(v, _mm256_set1_epi32(four[T + t])));
                        sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, ones));
                    }
                }
                for (int t = 0; t < N; ++t) {
                    const __m256 factor = _mm256_mul_ps(part == 0 ? scales : others, _mm256_set1_ps(scale[t]));
                    acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[t]), factor, acc[t]);
                }
            }
            continue;
        }
        const int32_t* start = reinterpret_cast<const int32_t*>(tile) + 10 * T + first;
        __m256i sums[N];
        for (int t = 0; t < N; ++t) {
            sums[t] = _mm256_setzero_si256();
        }
        if constexpr (is_nibbles(format)) {
            for (int i = 0; i < 4; ++i, quants += 64) {
                const __m256i both = load(quants);
                const __m256i w = _mm256_and_si256(both, low);
                const __m256i v = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm256_add_epi16(sums[t], _mm256_maddubs_epi16(w, _mm256_set1_epi32(numbers[i * T + t])));
                    sums[t] = _mm256_add_epi16(sums[t], _mm256_maddubs_epi16(v, _mm256_set1_epi32(numbers[(i + 4) * T + t])));
                }
            }
            for (int t = 0; t < N; ++t) {
                sums[t] = _mm256_madd_epi16(sums[t], ones);
                if constexpr (format == PackedFormat::nibbles_centred) {
                    sums[t] = _mm256_add_epi32(sums[t], _mm256_set1_epi32(start[t]));
                }
            }
        } else {
            for (int j = 0; j < 8; ++j, quants += 64) {
                const __m256i w = _mm256_xor_si256(load(quants), _mm256_set1_epi8(-128));
                const __m256i size = _mm256_abs_epi8(w);
                for (int t = 0; t < N; ++t) {
                    const __m256i a = _mm256_sign_epi8(_mm256_set1_epi32(numbers[j * T + t]), w);
                    sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(_mm256_maddubs_epi16(size, a), ones));
                }
            }
        }
        for (int t = 0; t < N; ++t) {
            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[t]), _mm256_mul_ps(scales, _mm256_set1_ps(scale[t])), acc[t]);
        }
        if constexpr (has_minimum(format)) {
            const __m256 minimums = widen(group.minimums + lane);
            for (int t = 0; t < N; ++t) {
                acc[t] = _mm256_fmadd_ps(minimums, _mm256_set1_ps(scaled_sum[t]), acc[t]);
            }
        }
    }
    for (int t = 0; t < N; ++t) {
        _mm256_storeu_ps(out + (first + t) * stride + 8 * half, acc[t]);
    }
}

template <PackedFormat format>
void multiply_tile(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride) {
    for (int half = 0; half < 2; ++half) {
        for (int first = 0; first < tokens;) {
            const int n = tokens - first < kMostTogether ? tokens - first : kMostTogether;
            switch (n) {
                case 1: multiply<format, 1>(group, half, tile, tokens, first, out, stride); break;
                case 2: multiply<format, 2>(group, half, tile, tokens, first, out, stride); break;
                case 3: multiply<format, 3>(group, half, tile, tokens, first, out, stride); break;
                default: multiply<format, 4>(group, half, tile, tokens, first, out, stride); break;
            }
            first += n;
        }
    }
}

}  // namespace

const Kernels kAvx2Kernels = {"avx2",
                              {multiply_tile<PackedFormat::nibbles_centred>, multiply_tile<PackedFormat::nibbles_minimum>,
                               multiply_tile<PackedFormat::bytes>, multiply_tile<PackedFormat::bytes_minimum>,
                               multiply_tile<PackedFormat::bytes_halves>},
                              cpu_has_avx2};

}  // namespace tokenloom
