// What AVX2 and AVX-VNNI have in common: a quarter of a group, eight rows, in a vector. Internal to each file that includes it, as
// kernel_tile.h is.

#pragma once

#include <immintrin.h>

#include "kernels/kernel_tile.h"

namespace tokenloom {

namespace {

struct Ymm {
    using Int = __m256i;
    using Float = __m256;
    static constexpr int kLanes = 8;

    static TOKENLOOM_INLINE Int zero() { return _mm256_setzero_si256(); }
    static TOKENLOOM_INLINE Float zeros() { return _mm256_setzero_ps(); }
    static TOKENLOOM_INLINE Int load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static TOKENLOOM_INLINE void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
    static TOKENLOOM_INLINE Int splat(const int32_t* p) { return _mm256_set1_epi32(*p); }
    static TOKENLOOM_INLINE Float splat(const float* p) { return _mm256_set1_ps(*p); }
    static TOKENLOOM_INLINE Int twice(Int v) { return _mm256_add_epi32(v, v); }

    static TOKENLOOM_INLINE Int low(Int both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
    static TOKENLOOM_INLINE Int high(Int both) { return low(_mm256_srli_epi16(both, 4)); }
    // v, and the plane's bits that `mask` has after shifting left.
    template <int shift, int mask>
    static TOKENLOOM_INLINE Int set(Int v, Int plane) {
        Int shifted;
        if constexpr (shift >= 0) {
            shifted = _mm256_slli_epi16(plane, shift);
        } else {
            shifted = _mm256_srli_epi16(plane, -shift);
        }
        return _mm256_or_si256(_mm256_and_si256(shifted, _mm256_set1_epi8(mask)), v);
    }

    static TOKENLOOM_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static TOKENLOOM_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static TOKENLOOM_INLINE Float halves(const uint16_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    template <PackedFormat format>
    static TOKENLOOM_INLINE Float whole(const uint8_t* p) {
        if constexpr (format == PackedFormat::float16) {
            return halves(reinterpret_cast<const uint16_t*>(p));
        } else if constexpr (format == PackedFormat::bfloat16) {
            const Int wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
            return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
        } else {
            return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
        }
    }
};

}  // namespace

}  // namespace tokenloom
