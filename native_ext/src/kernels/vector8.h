// Eight float32 lanes in GCC's and Clang's vector extension: the compiler makes AVX, NEON or SSE of it. Each operation is
// the lane-wise IEEE one, so the instruction set changes the speed and, where the file allows fused multiply-add, only
// that one rounding.

#pragma once

#include <ggml.h>

#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace tokenloom {

using Float8 = float __attribute__((vector_size(32)));
using Int8 = int32_t __attribute__((vector_size(32)));
using Unsigned8 = uint32_t __attribute__((vector_size(32)));

inline __attribute__((always_inline)) void load8(Float8& out, const float* p) { std::memcpy(&out, p, sizeof(out)); }

inline __attribute__((always_inline)) void store8(float* p, const Float8& v) { std::memcpy(p, &v, sizeof(v)); }

// Half precision, widened: exact.
inline __attribute__((always_inline)) void load8(Float8& out, const ggml_fp16_t* p) {
#ifdef __F16C__
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    std::memcpy(&out, &wide, sizeof(out));
#else
    for (int i = 0; i < 8; ++i) {
        // Shift exponent and mantissa into place, then undo the bias of 112 by a multiplication, which also handles
        // subnormals; the pool holds no infinities, and a NaN stays one through the exponent test.
        const uint32_t half = p[i];
        const uint32_t magnitude = (half & 0x7fffu) << 13;
        float value;
        std::memcpy(&value, &magnitude, sizeof(value));
        value *= 0x1p112f;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        if ((half & 0x7c00u) == 0x7c00u) {
            bits |= 0x7f800000u;
        }
        bits |= (half & 0x8000u) << 16;
        std::memcpy(&value, &bits, sizeof(value));
        out[i] = value;
    }
#endif
}

inline __attribute__((always_inline)) Float8 splat8(float x) { return Float8{x, x, x, x, x, x, x, x}; }

// e^x for x <= 0, relative error below 2e-7; 0 below -87. Cody-Waite reduction to |r| <= ln(2)/2 and the Taylor
// polynomial of degree 7.
inline __attribute__((always_inline)) Float8 exp8(Float8 x) {
    const Float8 low = splat8(-87.0f);
    const Int8 underflow = x < low;
    x = underflow ? low : x;
    const Float8 magic = splat8(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const Float8 shifted = x * 1.44269504f + magic;
    const Float8 n = shifted - magic;
    Float8 r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Float8 p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Unsigned8 exponent;  // unsigned: of a NaN it is anything, and may wrap
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    Unsigned8 bits;
    std::memcpy(&bits, &p, sizeof(bits));
    bits += exponent << 23;  // the integer sits in shifted's low bits; the magic number's own shift out
    std::memcpy(&p, &bits, sizeof(p));
    return underflow ? splat8(0.0f) : p;
}

// In a fixed tree.
inline __attribute__((always_inline)) float sum8(Float8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

inline __attribute__((always_inline)) Float8 max8(Float8 a, Float8 b) { return a > b ? a : b; }

}  // namespace tokenloom
