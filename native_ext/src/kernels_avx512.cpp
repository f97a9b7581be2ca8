// AVX-512 VNNI: one vector holds a k-group of 16 rows, one instruction multiplies it with four numbers of a token and adds.
// Built for that instruction set: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "cpu_features.h"
#include "kernel_table.h"

namespace tokenloom {

namespace {

constexpr int kMostTogether = 8;  // tokens whose sums, whole and rounded, fit the 32 registers

constexpr bool is_nibbles(PackedFormat format) {
    return format == PackedFormat::nibbles_centred || format == PackedFormat::nibbles_minimum;
}

constexpr bool has_minimum(PackedFormat format) {
    return format == PackedFormat::nibbles_minimum || format == PackedFormat::bytes_minimum;
}

inline __attribute__((always_inline)) __m512 widen(const uint16_t* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

// Tokens `first` to `first` + N - 1 of a tile of T.
template <PackedFormat format, int N>
void multiply(const PackedGroup& group, const uint8_t* tile, int T, int first, float* out, size_t stride) {
    __m512 acc[N];
    for (int t = 0; t < N; ++t) {
        acc[t] = _mm512_setzero_ps();
    }
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t* quants = group.quants;
    for (int b = 0; b < group.blocks; ++b, tile += static_cast<size_t>(kTileBytes) * T) {
        const auto* numbers = reinterpret_cast<const int32_t*>(tile) + first;  // four at a time
        const auto* scale = reinterpret_cast<const float*>(tile) + 8 * T + first;
        const float* scaled_sum = scale + T;
        const __m512 scales = widen(group.scales + static_cast<size_t>(b) * kGroupRows);
        if constexpr (format == PackedFormat::bytes_halves) {
            const __m512 others = widen(group.minimums + static_cast<size_t>(b) * kGroupRows);
            for (int half = 0; half < 2; ++half, quants += 256) {
                const int32_t* start = reinterpret_cast<const int32_t*>(tile) + (12 + half) * T + first;
                __m512i sums[N];
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm512_set1_epi32(start[t]);
                }
                for (int j = 0; j < 4; ++j) {
                    const __m512i w = _mm512_loadu_si512(quants + 64 * j);
                    for (int t = 0; t < N; ++t) {
                        sums[t] = _mm512_dpbusd_epi32(sums[t], w, _mm512_set1_epi32(numbers[(4 * half + j) * T + t]));
                    }
                }
                for (int t = 0; t < N; ++t) {
                    const __m512 factor = _mm512_mul_ps(half == 0 ? scales : others, _mm512_set1_ps(scale[t]));
                    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]), factor, acc[t]);
                }
            }
            continue;
        }
        const int32_t* start = reinterpret_cast<const int32_t*>(tile) + (is_nibbles(format) ? 10 : 11) * T + first;
        __m512i sums[N];
        for (int t = 0; t < N; ++t) {
            sums[t] = format == PackedFormat::nibbles_minimum ? _mm512_setzero_si512() : _mm512_set1_epi32(start[t]);
        }
        if constexpr (is_nibbles(format)) {
            for (int i = 0; i < 4; ++i, quants += 64) {
                const __m512i both = _mm512_loadu_si512(quants);
                const __m512i w = _mm512_and_si512(both, low);
                const __m512i v = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm512_dpbusd_epi32(sums[t], w, _mm512_set1_epi32(numbers[i * T + t]));
                }
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm512_dpbusd_epi32(sums[t], v, _mm512_set1_epi32(numbers[(i + 4) * T + t]));
                }
            }
        } else {
            for (int j = 0; j < 8; ++j, quants += 64) {
                const __m512i w = _mm512_loadu_si512(quants);
                for (int t = 0; t < N; ++t) {
                    sums[t] = _mm512_dpbusd_epi32(sums[t], w, _mm512_set1_epi32(numbers[j * T + t]));
                }
            }
        }
        for (int t = 0; t < N; ++t) {
            acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]), _mm512_mul_ps(scales, _mm512_set1_ps(scale[t])), acc[t]);
        }
        if constexpr (has_minimum(format)) {
            const __m512 minimums = widen(group.minimums + static_cast<size_t>(b) * kGroupRows);
            for (int t = 0; t < N; ++t) {
                acc[t] = _mm512_fmadd_ps(minimums, _mm512_set1_ps(scaled_sum[t]), acc[t]);
            }
        }
    }
    for (int t = 0; t < N; ++t) {
        _mm512_storeu_ps(out + (first + t) * stride, acc[t]);
    }
}

template <PackedFormat format>
void multiply_tile(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride) {
    for (int first = 0; first < tokens;) {
        const int rest = tokens - first;
        const int n = rest <= kMostTogether ? rest : (rest + 1) / 2;
        switch (n) {
            case 1: multiply<format, 1>(group, tile, tokens, first, out, stride); break;
            case 2: multiply<format, 2>(group, tile, tokens, first, out, stride); break;
            case 3: multiply<format, 3>(group, tile, tokens, first, out, stride); break;
            case 4: multiply<format, 4>(group, tile, tokens, first, out, stride); break;
            case 5: multiply<format, 5>(group, tile, tokens, first, out, stride); break;
            case 6: multiply<format, 6>(group, tile, tokens, first, out, stride); break;
            case 7: multiply<format, 7>(group, tile, tokens, first, out, stride); break;
            default: multiply<format, 8>(group, tile, tokens, first, out, stride); break;
        }
        first += n;
    }
}

}  // namespace

const Kernels kVnniKernels = {"vnni",
                              {multiply_tile<PackedFormat::nibbles_centred>, multiply_tile<PackedFormat::nibbles_minimum>,
                               multiply_tile<PackedFormat::bytes>, multiply_tile<PackedFormat::bytes_minimum>,
                               multiply_tile<PackedFormat::bytes_halves>},
                              cpu_has_avx512_vnni};

}  // namespace tokenloom
