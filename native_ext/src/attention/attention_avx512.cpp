// AVX-512: six queries by a whole page of scores, or by 64 dimensions of output, fill 24 of the 32 registers.
// Built for that instruction set: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "attention/attention_kernel.h"
#include "system/cpu_features.h"
#include "kernels/power_of_two.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

struct Vector {
    static constexpr int lanes = 16;
    static constexpr int together = 6;
    static constexpr int across = 4;

    __m512 v;

    static TOKENLOOM_INLINE Vector zero() { return {_mm512_setzero_ps()}; }
    static TOKENLOOM_INLINE Vector all(float x) { return {_mm512_set1_ps(x)}; }
    static TOKENLOOM_INLINE Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static TOKENLOOM_INLINE Vector load(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static TOKENLOOM_INLINE Vector load(const int8_t* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
    }
    static TOKENLOOM_INLINE void ahead(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
    TOKENLOOM_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }

    TOKENLOOM_INLINE Vector first(int n, Vector other) const {
        const int count = n < 0 ? 0 : (n > lanes ? lanes : n);
        return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>((1u << count) - 1), v)};
    }
    TOKENLOOM_INLINE Vector size() const { return {_mm512_abs_ps(v)}; }
    TOKENLOOM_INLINE Vector signed_as(Vector other) const {
        return {_mm512_mask_sub_ps(v, _mm512_cmp_ps_mask(other.v, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_set1_ps(-0.0f), v)};
    }
    TOKENLOOM_INLINE Vector power_of_two() const {
        const __mmask16 normal = _mm512_cmp_ps_mask(v, _mm512_set1_ps(kLowestPower), _CMP_NLT_UQ);
        const __m512 shifted = _mm512_add_ps(v, _mm512_set1_ps(kRoundingShift));
        const __m512 rest = _mm512_sub_ps(v, _mm512_sub_ps(shifted, _mm512_set1_ps(kRoundingShift)));
        __m512 p = _mm512_set1_ps(kPowerPolynomial[5]);
        for (int i = 4; i >= 0; --i) {
            p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(kPowerPolynomial[i]));
        }
        const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
        return {_mm512_maskz_mov_ps(normal, _mm512_castsi512_ps(bits))};
    }
    TOKENLOOM_INLINE float largest() const { return _mm512_reduce_max_ps(v); }
    static TOKENLOOM_INLINE float tree(const Vector (&w)[4]) {
        const __m512 sum = _mm512_add_ps(_mm512_add_ps(w[0].v, w[1].v), _mm512_add_ps(w[2].v, w[3].v));
        const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sum), 1));
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum), upper);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

TOKENLOOM_INLINE Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector fused(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TOKENLOOM_INLINE Vector greater(Vector a, Vector b) { return {_mm512_max_ps(a.v, b.v)}; }

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom

#include "attention/attention_body.h"

namespace tokenloom {

const AttentionKernels kAvx512Attention = {"avx512", {attend_page<uint16_t>, attend_page<int8_t>}, cpu_has_avx512_vnni};

}  // namespace tokenloom
