// AVX-512: a block of a token is two vectors, and those of six tokens fill 12 of the 32 registers.
// Built for that instruction set: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "system/cpu_features.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

// Of the four k-groups that a vector has of each token, [k-group][T]: where in `low`, and from 16 on in `high`, each lane is.
struct Order {
    alignas(64) int32_t lane[32];
};

template <int T>
constexpr Order order_of() {
    Order order{};
    for (int i = 0; i < 4 * T; ++i) {
        order.lane[i] = i % T < 4 ? i / T * 4 + i % T : 16 + i / T * 4 + i % T - 4;
    }
    return order;
}

template <int T>
constexpr Order kOrder = order_of<T>();

struct Vector {
    using Float = __m512;
    using Int = __m512i;
    using Mask = __mmask16;
    static constexpr int lanes = 16;
    static constexpr int together = 4;

    static TOKENLOOM_INLINE Float all(float x) { return _mm512_set1_ps(x); }
    static TOKENLOOM_INLINE Float load(const float* p) { return _mm512_loadu_ps(p); }
    static TOKENLOOM_INLINE Float load(const float* p, int n) {
        return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
    }
    static TOKENLOOM_INLINE void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
    static TOKENLOOM_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static TOKENLOOM_INLINE Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static TOKENLOOM_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static TOKENLOOM_INLINE Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static TOKENLOOM_INLINE Float greater(Float a, Float b) { return _mm512_max_ps(a, b); }
    static TOKENLOOM_INLINE Float less(Float a, Float b) { return _mm512_min_ps(a, b); }

    static TOKENLOOM_INLINE Int bits(Float v) { return _mm512_castps_si512(v); }
    static TOKENLOOM_INLINE Float floats(Int v) { return _mm512_castsi512_ps(v); }
    static TOKENLOOM_INLINE Int rounded(Float v) { return _mm512_cvtps_epi32(v); }
    static TOKENLOOM_INLINE Int ints(int32_t n) { return _mm512_set1_epi32(n); }
    static TOKENLOOM_INLINE Int largest(Int a, Int b) { return _mm512_max_epi32(a, b); }
    static TOKENLOOM_INLINE Int plus(Int a, Int b) { return _mm512_add_epi32(a, b); }
    static TOKENLOOM_INLINE Int both(Int a, Int b) { return _mm512_and_si512(a, b); }
    static TOKENLOOM_INLINE Int either(Int a, Int b) { return _mm512_or_si512(a, b); }
    template <int n>
    static TOKENLOOM_INLINE Int left(Int v) { return _mm512_slli_epi32(v, n); }
    template <int n>
    static TOKENLOOM_INLINE Int right(Int v) { return _mm512_srli_epi32(v, n); }

    static TOKENLOOM_INLINE Mask below(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static TOKENLOOM_INLINE Mask negative(Float v) { return _mm512_cmplt_epi32_mask(bits(v), ints(0)); }
    static TOKENLOOM_INLINE Float zero_where(Mask m, Float v) { return _mm512_maskz_mov_ps(static_cast<Mask>(~m), v); }
    static TOKENLOOM_INLINE Float choose(Mask m, Float a, Float b) { return _mm512_mask_blend_ps(m, b, a); }

    static TOKENLOOM_INLINE Int low32(Int a, Int b) { return _mm512_unpacklo_epi32(a, b); }
    static TOKENLOOM_INLINE Int high32(Int a, Int b) { return _mm512_unpackhi_epi32(a, b); }
    static TOKENLOOM_INLINE Int low64(Int a, Int b) { return _mm512_unpacklo_epi64(a, b); }
    static TOKENLOOM_INLINE Int high64(Int a, Int b) { return _mm512_unpackhi_epi64(a, b); }
    static TOKENLOOM_INLINE Int narrow32(Int a, Int b) { return _mm512_packs_epi32(a, b); }
    static TOKENLOOM_INLINE Int narrow16(Int a, Int b) { return _mm512_packs_epi16(a, b); }
    static TOKENLOOM_INLINE __m128i add_lanes(Int v) {
        const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
        return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    }
    static TOKENLOOM_INLINE __m128i largest_lanes(Int v) {
        const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
        return _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    }
    static TOKENLOOM_INLINE __m256 fold(const Float (&v)[1]) {
        const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v[0]), 1));
        return _mm256_add_ps(_mm512_castps512_ps256(v[0]), high);
    }
    static TOKENLOOM_INLINE Int sums_of_four(Int v) { return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), v); }

    static TOKENLOOM_INLINE void write_halves(uint16_t* p, Float v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static TOKENLOOM_INLINE void write_halves(uint16_t* p, Float v, int n) {
        _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << n) - 1), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static TOKENLOOM_INLINE void write_bytes(int8_t* p, Int v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
    }

    // [k-group][T] of four bytes.
    template <int T>
    static TOKENLOOM_INLINE void write(uint8_t* to, Int low, Int high) {
        const auto ordered = [&](int from) {
            const Int order = _mm512_load_si512(kOrder<T>.lane + from);
            return T > 4 ? _mm512_permutex2var_epi32(low, order, high) : T < 4 ? _mm512_permutexvar_epi32(order, low) : low;
        };
        const Int first = ordered(0);
        if constexpr (T == 1) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(first));
        } else if constexpr (T == 2) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(first));
        } else if constexpr (T == 3) {
            _mm512_mask_storeu_epi32(to, 0xfff, first);
        } else {
            _mm512_storeu_si512(to, first);
            if constexpr (T == 5) {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 64), _mm512_castsi512_si128(ordered(16)));
            } else if constexpr (T == 6) {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64), _mm512_castsi512_si256(ordered(16)));
            }
        }
    }
};

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom

#include "kernels/activations_body.h"
#include "kernels/store_body.h"

namespace tokenloom {

const RowKernels kAvx512Rows = {"avx512", write_tile, write_halves, spread_halves, write_bytes, weigh_avx512, cpu_has_avx512_vnni};

}  // namespace tokenloom
