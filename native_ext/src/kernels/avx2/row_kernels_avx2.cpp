// AVX2: a block of a token is four vectors.
// Built for that instruction set: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "system/cpu_features.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

alignas(64) constexpr int32_t kLaneMasks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct Vector {
    using Float = __m256;
    using Int = __m256i;
    using Mask = __m256;
    static constexpr int lanes = 8;
    static constexpr int together = 2;

    static TOKENLOOM_INLINE Float all(float x) { return _mm256_set1_ps(x); }
    static TOKENLOOM_INLINE Float load(const float* p) { return _mm256_loadu_ps(p); }
    static TOKENLOOM_INLINE Float load(const float* p, int n) {
        return _mm256_maskload_ps(p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMasks + lanes - n)));
    }
    static TOKENLOOM_INLINE void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
    static TOKENLOOM_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static TOKENLOOM_INLINE Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static TOKENLOOM_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static TOKENLOOM_INLINE Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static TOKENLOOM_INLINE Float greater(Float a, Float b) { return _mm256_max_ps(a, b); }
    static TOKENLOOM_INLINE Float less(Float a, Float b) { return _mm256_min_ps(a, b); }

    static TOKENLOOM_INLINE Int bits(Float v) { return _mm256_castps_si256(v); }
    static TOKENLOOM_INLINE Float floats(Int v) { return _mm256_castsi256_ps(v); }
    static TOKENLOOM_INLINE Int rounded(Float v) { return _mm256_cvtps_epi32(v); }
    static TOKENLOOM_INLINE Int ints(int32_t n) { return _mm256_set1_epi32(n); }
    static TOKENLOOM_INLINE Int largest(Int a, Int b) { return _mm256_max_epi32(a, b); }
    static TOKENLOOM_INLINE Int plus(Int a, Int b) { return _mm256_add_epi32(a, b); }
    static TOKENLOOM_INLINE Int both(Int a, Int b) { return _mm256_and_si256(a, b); }
    static TOKENLOOM_INLINE Int either(Int a, Int b) { return _mm256_or_si256(a, b); }
    template <int n>
    static TOKENLOOM_INLINE Int left(Int v) { return _mm256_slli_epi32(v, n); }
    template <int n>
    static TOKENLOOM_INLINE Int right(Int v) { return _mm256_srli_epi32(v, n); }

    static TOKENLOOM_INLINE Mask below(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
    static TOKENLOOM_INLINE Mask negative(Float v) { return v; }
    static TOKENLOOM_INLINE Float zero_where(Mask m, Float v) { return _mm256_andnot_ps(m, v); }
    static TOKENLOOM_INLINE Float choose(Mask m, Float a, Float b) { return _mm256_blendv_ps(b, a, m); }

    static TOKENLOOM_INLINE Int low32(Int a, Int b) { return _mm256_unpacklo_epi32(a, b); }
    static TOKENLOOM_INLINE Int high32(Int a, Int b) { return _mm256_unpackhi_epi32(a, b); }
    static TOKENLOOM_INLINE Int low64(Int a, Int b) { return _mm256_unpacklo_epi64(a, b); }
    static TOKENLOOM_INLINE Int high64(Int a, Int b) { return _mm256_unpackhi_epi64(a, b); }
    static TOKENLOOM_INLINE Int narrow32(Int a, Int b) { return _mm256_packs_epi32(a, b); }
    static TOKENLOOM_INLINE Int narrow16(Int a, Int b) { return _mm256_packs_epi16(a, b); }
    static TOKENLOOM_INLINE __m128i add_lanes(Int v) { return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)); }
    static TOKENLOOM_INLINE __m128i largest_lanes(Int v) {
        return _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    }
    static TOKENLOOM_INLINE __m256 fold(const Float (&v)[2]) { return _mm256_add_ps(v[0], v[1]); }
    static TOKENLOOM_INLINE Int sums_of_four(Int v) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v), _mm256_set1_epi16(1));
    }

    static TOKENLOOM_INLINE void write_halves(uint16_t* p, Float v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static TOKENLOOM_INLINE void write_halves(uint16_t* p, Float v, int n) {
        uint16_t halves[lanes];
        write_halves(halves, v);
        for (int i = 0; i < n; ++i) {
            p[i] = halves[i];
        }
    }
    static TOKENLOOM_INLINE void write_bytes(int8_t* p, Int v) {
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
    }

    // [k-group][T] of four bytes, two k-groups. Of three tokens the last 16 bytes reach into what is written next.
    template <int T>
    static TOKENLOOM_INLINE void write(uint8_t* to, Int low, Int high) {
        const auto group = [](uint8_t* at, __m128i four, __m128i two) {
            __builtin_memcpy(at, &four, T < 3 ? 4 * T : 16);
            if constexpr (T > 4) {
                __builtin_memcpy(at + 16, &two, 4 * (T - 4));
            }
        };
        group(to, _mm256_castsi256_si128(low), _mm256_castsi256_si128(high));
        group(to + 4 * T, _mm256_extracti128_si256(low, 1), _mm256_extracti128_si256(high, 1));
    }
};

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom

#include "kernels/activations_body.h"
#include "kernels/store_body.h"

namespace tokenloom {

const RowKernels kAvx2Rows = {"avx2", write_tile, write_halves, spread_halves, write_bytes, weigh_portable, cpu_has_avx2};

}  // namespace tokenloom
