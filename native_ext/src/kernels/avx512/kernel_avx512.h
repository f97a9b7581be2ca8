// What AVX-512 VNNI can do with a vector of rows: half a group's. Included where a set of kernels has it.

#pragma once

#include <immintrin.h>

#include "kernels/kernel_tile.h"

namespace tokenloom {

namespace {

struct Vnni {
    using Int = __m512i;
    using Float = __m512;
    template <int bits>
    using Weight = __m512i;
    using Sum = __m512i;
    static constexpr int kLanes = 16;
    static constexpr int kVectors = 2;
    static constexpr int kRounded = 6;
    static constexpr int kWhole = 6;
    template <int bits>
    static constexpr bool kStarts = true;
    template <int bits>
    static constexpr int kPairs = 4;  // until sums are widened, which these need not be

    static TOKENLOOM_INLINE Int zero() { return _mm512_setzero_si512(); }
    static TOKENLOOM_INLINE Float zeros() { return _mm512_setzero_ps(); }
    static TOKENLOOM_INLINE Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static TOKENLOOM_INLINE void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
    static TOKENLOOM_INLINE Int splat(const int32_t* p) { return _mm512_set1_epi32(*p); }
    static TOKENLOOM_INLINE Float splat(const float* p) { return _mm512_set1_ps(*p); }
    static TOKENLOOM_INLINE Int twice(Int v) { return _mm512_add_epi32(v, v); }

    static TOKENLOOM_INLINE Int low(Int both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
    static TOKENLOOM_INLINE Int high(Int both) { return low(_mm512_srli_epi16(both, 4)); }
    // v, and the plane's bits that `mask` has after shifting left.
    template <int shift, int mask>
    static TOKENLOOM_INLINE Int set(Int v, Int plane) {
        Int shifted;
        if constexpr (shift >= 0) {
            shifted = _mm512_slli_epi16(plane, shift);
        } else {
            shifted = _mm512_srli_epi16(plane, -shift);
        }
        return _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi8(mask), v, 0xea);  // (a and b) or c
    }
    template <int bits>
    static TOKENLOOM_INLINE Int weight(Int stored) { return stored; }

    static TOKENLOOM_INLINE void start(Sum& sum, Int value) { sum = value; }
    template <int bits>
    static TOKENLOOM_INLINE void add(Sum& sum, Int w, Int a) { sum = _mm512_dpbusd_epi32(sum, w, a); }
    template <int bits>
    static TOKENLOOM_INLINE void widen(Sum&) {}
    static TOKENLOOM_INLINE Float total(Sum sum) { return _mm512_cvtepi32_ps(sum); }

    static TOKENLOOM_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static TOKENLOOM_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static TOKENLOOM_INLINE Float halves(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    template <PackedFormat format>
    static TOKENLOOM_INLINE Float whole(const uint8_t* p) {
        if constexpr (format == PackedFormat::float16) {
            return halves(reinterpret_cast<const uint16_t*>(p));
        } else if constexpr (format == PackedFormat::bfloat16) {
            const Int wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
            return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
        } else {
            return _mm512_loadu_ps(p);
        }
    }
};

}  // namespace

}  // namespace tokenloom
