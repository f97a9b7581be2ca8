// AVX2: three queries by half a page of scores, or by 32 dimensions of output, fill 12 of the 16 registers.
// Built for that instruction set: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "attention/attention_kernel.h"
#include "system/cpu_features.h"
#include "kernels/power_of_two.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

alignas(64) constexpr int32_t kLaneMasks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct Vector {
    static constexpr int lanes = 8;
    static constexpr int together = 3;
    static constexpr int across = 4;

    __m256 v;

    static TOKENLOOM_INLINE Vector zero() { return {_mm256_setzero_ps()}; }
    static TOKENLOOM_INLINE Vector all(float x) { return {_mm256_set1_ps(x)}; }
    static TOKENLOOM_INLINE Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static TOKENLOOM_INLINE Vector load(const uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static TOKENLOOM_INLINE Vector load(const int8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
    }
    static TOKENLOOM_INLINE void ahead(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
    TOKENLOOM_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }

    TOKENLOOM_INLINE Vector first(int n, Vector other) const {
        const int count = n < 0 ? 0 : (n > lanes ? lanes : n);
        return {_mm256_blendv_ps(other.v, v, _mm256_loadu_ps(reinterpret_cast<const float*>(kLaneMasks + lanes - count)))};
    }
    TOKENLOOM_INLINE Vector size() const { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v)}; }
    TOKENLOOM_INLINE Vector signed_as(Vector other) const {
        return {_mm256_or_ps(v, _mm256_and_ps(_mm256_cmp_ps(other.v, _mm256_setzero_ps(), _CMP_LT_OQ), _mm256_set1_ps(-0.0f)))};
    }
    TOKENLOOM_INLINE Vector power_of_two() const {
        const __m256 normal = _mm256_cmp_ps(v, _mm256_set1_ps(kLowestPower), _CMP_NLT_UQ);
        const __m256 shifted = _mm256_add_ps(v, _mm256_set1_ps(kRoundingShift));
        const __m256 rest = _mm256_sub_ps(v, _mm256_sub_ps(shifted, _mm256_set1_ps(kRoundingShift)));
        __m256 p = _mm256_set1_ps(kPowerPolynomial[5]);
        for (int i = 4; i >= 0; --i) {
            p = _mm256_fmadd_ps(p, rest, _mm256_set1_ps(kPowerPolynomial[i]));
        }
        const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
        return {_mm256_and_ps(normal, _mm256_castsi256_ps(bits))};
    }
    TOKENLOOM_INLINE float largest() const {
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    static TOKENLOOM_INLINE float tree(const Vector (&w)[8]) {
        const __m256 lower = _mm256_add_ps(_mm256_add_ps(w[0].v, w[2].v), _mm256_add_ps(w[4].v, w[6].v));
        const __m256 upper = _mm256_add_ps(_mm256_add_ps(w[1].v, w[3].v), _mm256_add_ps(w[5].v, w[7].v));
        const __m256 eight = _mm256_add_ps(lower, upper);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

TOKENLOOM_INLINE Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.v, b.v)}; }
TOKENLOOM_INLINE Vector fused(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TOKENLOOM_INLINE Vector greater(Vector a, Vector b) { return {_mm256_max_ps(a.v, b.v)}; }

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom

#include "attention/attention_body.h"

namespace tokenloom {

const AttentionKernels kAvx2Attention = {"avx2", {attend_page<uint16_t>, attend_page<int8_t>}, cpu_has_avx2};

}  // namespace tokenloom
