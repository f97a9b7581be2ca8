// AVX-VNNI: the products of AVX-512 VNNI in vectors of 256 bits and 16 registers.

#include "system/cpu_features.h"
#include "kernels/avx2/kernel_avx2.h"

namespace tokenloom {

namespace {

struct AvxVnni : Ymm {
    template <int bits>
    using Weight = __m256i;
    using Sum = __m256i;
    static constexpr int kVectors = 2;
    static constexpr int kRounded = 6;
    static constexpr int kWhole = 6;
    template <int bits>
    static constexpr bool kStarts = true;
    template <int bits>
    static constexpr int kPairs = 4;

    template <int bits>
    static TOKENLOOM_INLINE Int weight(Int stored) { return stored; }
    static TOKENLOOM_INLINE void start(Sum& sum, Int value) { sum = value; }
    template <int bits>
    static TOKENLOOM_INLINE void add(Sum& sum, Int w, Int a) { sum = _mm256_dpbusd_avx_epi32(sum, w, a); }
    template <int bits>
    static TOKENLOOM_INLINE void widen(Sum&) {}
    static TOKENLOOM_INLINE Float total(Sum sum) { return _mm256_cvtepi32_ps(sum); }
};

}  // namespace

const Kernels kAvxVnniKernels = make_kernels<AvxVnni>("avxvnni", cpu_has_avx_vnni);

}  // namespace tokenloom
