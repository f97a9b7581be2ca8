// AVX2: products of bytes in pairs of int16, widened before they could overflow.
//
// Of 4 bits a pair is at most 2 * 15 * 127 = 3,810, so that the eight of a block fit; of 5 bits 7,874, so that four do; of
// 6 bits 16,002, so that two do.
// Unsigned bytes would not fit, so the sign moves from the weight to the activation: |w| <= 128 and |a| <= 127 give at
// most 32,512 a pair. The sum then is that of signed weights, and needs no start.

#include "system/cpu_features.h"
#include "kernels/avx2/kernel_avx2.h"

namespace tokenloom {

namespace {

struct Unsigned {
    __m256i number;
};

struct Signed {
    __m256i number;
    __m256i size;
};

template <int bits>
struct WeightOf {
    using type = Unsigned;
};

template <>
struct WeightOf<8> {
    using type = Signed;
};

// Compilers would add in a tree, and keep its leaves in memory.
TOKENLOOM_INLINE void in_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

struct Avx2 : Ymm {
    template <int bits>
    using Weight = typename WeightOf<bits>::type;
    struct Sum {
        __m256i pairs;
        __m256i wide;
    };
    static constexpr int kVectors = 2;
    static constexpr int kRounded = 6;
    static constexpr int kWhole = 6;
    template <int bits>
    static constexpr bool kStarts = bits != 8;
    template <int bits>
    static constexpr int kPairs = bits == 4 ? 4 : bits == 5 ? 2 : 1;

    template <int bits>
    static TOKENLOOM_INLINE Weight<bits> weight(Int stored) {
        if constexpr (bits == 8) {
            const Int number = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
            return {number, _mm256_abs_epi8(number)};
        } else {
            return {stored};
        }
    }
    static TOKENLOOM_INLINE void start(Sum& sum, Int value) { sum = {zero(), value}; }
    template <int bits>
    static TOKENLOOM_INLINE void add(Sum& sum, const Weight<bits>& w, Int a) {
        if constexpr (bits == 8) {
            sum.pairs = _mm256_maddubs_epi16(w.size, _mm256_sign_epi8(a, w.number));
        } else {
            sum.pairs = _mm256_add_epi16(sum.pairs, _mm256_maddubs_epi16(w.number, a));
            in_order(sum.pairs);
        }
    }
    template <int bits>
    static TOKENLOOM_INLINE void widen(Sum& sum) {
        sum = {zero(), _mm256_add_epi32(sum.wide, _mm256_madd_epi16(sum.pairs, _mm256_set1_epi16(1)))};
        in_order(sum.wide);
    }
    static TOKENLOOM_INLINE Float total(const Sum& sum) { return _mm256_cvtepi32_ps(sum.wide); }
};

}  // namespace

const Kernels kAvx2Kernels = make_kernels<Avx2>("avx2", cpu_has_avx2);

}  // namespace tokenloom
