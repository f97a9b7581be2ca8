// Candidates' weights in vectors of 16. Built for AVX-512: includes nothing whose inline functions other files may share.

#include <immintrin.h>

#include "kernels/power_of_two.h"
#include "kernels/weigh.h"

namespace tokenloom {

namespace {

constexpr int kLanes = 16;
constexpr float kNothing = -__builtin_inff();

// 2^x for x <= 0.
inline __attribute__((always_inline)) __m512 power_of_two(__m512 x) {
    const __m512 shift = _mm512_set1_ps(kRoundingShift);
    const __m512 shifted = _mm512_add_ps(x, shift);
    const __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(shifted, shift));
    __m512 p = _mm512_set1_ps(kPowerPolynomial[5]);
    for (int i = 4; i >= 0; --i) {
        p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(kPowerPolynomial[i]));
    }
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
    const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kLowestPower), _CMP_NLT_UQ);
    return _mm512_maskz_mov_ps(above, _mm512_castsi512_ps(bits));
}

}  // namespace

void weigh_avx512(const float* logits, int64_t count, float best, float factor, float* weights, double* sums, float* tops) {
    for (int64_t begin = 0; begin < count; begin += kWeighed, ++sums, ++tops) {
        const int64_t end = count - begin < kWeighed ? count : begin + kWeighed;
        __m512d lanes = _mm512_setzero_pd();
        __m512 most = _mm512_setzero_ps();
        for (int64_t at = begin; at < end; at += kLanes) {
            const int64_t left = end - at;
            const auto there = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xffffu);
            const __m512 logit = _mm512_mask_loadu_ps(_mm512_set1_ps(kNothing), there, logits + at);
            const __m512 weight = power_of_two(_mm512_mul_ps(_mm512_sub_ps(logit, _mm512_set1_ps(best)), _mm512_set1_ps(factor)));
            _mm512_mask_storeu_ps(weights + at, there, weight);
            const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(weight), 1));
            lanes = _mm512_add_pd(lanes, _mm512_cvtps_pd(_mm512_castps512_ps256(weight)));
            lanes = _mm512_add_pd(lanes, _mm512_cvtps_pd(upper));
            most = _mm512_max_ps(weight, most);
        }
        const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(lanes), _mm512_extractf64x4_pd(lanes, 1));
        const __m128d pairs = _mm_hadd_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        *sums = _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)));
        *tops = _mm512_reduce_max_ps(most);
    }
}

}  // namespace tokenloom
