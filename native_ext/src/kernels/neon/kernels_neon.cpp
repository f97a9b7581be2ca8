// ARM's dotprod: four rows of a group, in a vector; one instruction multiplies a k-group of each with four numbers
// of a token and adds. Both sides are signed, so that bytes are made signed and need no start.

#include <arm_neon.h>

#include "system/cpu_features.h"
#include "kernels/kernel_tile.h"

namespace tokenloom {

namespace {

struct Neon {
    using Int = int32x4_t;
    using Float = float32x4_t;
    template <int bits>
    using Weight = int8x16_t;
    using Sum = int32x4_t;
    static constexpr int kLanes = 4;
    static constexpr int kVectors = 4;
    static constexpr int kRounded = 2;
    static constexpr int kWhole = 6;
    template <int bits>
    static constexpr bool kStarts = bits != 8;
    template <int bits>
    static constexpr int kPairs = 4;  // until sums are widened, which these need not be

    static TOKENLOOM_INLINE Int zero() { return vdupq_n_s32(0); }
    static TOKENLOOM_INLINE Float zeros() { return vdupq_n_f32(0.0f); }
    static TOKENLOOM_INLINE Int load(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
    static TOKENLOOM_INLINE void store(float* p, Float v) { vst1q_f32(p, v); }
    static TOKENLOOM_INLINE Int splat(const int32_t* p) { return vld1q_dup_s32(p); }
    static TOKENLOOM_INLINE Float splat(const float* p) { return vld1q_dup_f32(p); }
    static TOKENLOOM_INLINE Int twice(Int v) { return vaddq_s32(v, v); }

    static TOKENLOOM_INLINE Int low(Int both) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(both), vdupq_n_u8(15))); }
    static TOKENLOOM_INLINE Int high(Int both) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(both), 4)); }
    // v, and the plane's bits that `mask` has after shifting left.
    template <int shift, int mask>
    static TOKENLOOM_INLINE Int set(Int v, Int plane) {
        uint8x16_t shifted = vreinterpretq_u8_s32(plane);
        if constexpr (shift > 0) {
            shifted = vshlq_n_u8(shifted, shift);
        } else if constexpr (shift < 0) {
            shifted = vshrq_n_u8(shifted, -shift);
        }
        return vreinterpretq_s32_u8(vorrq_u8(vandq_u8(shifted, vdupq_n_u8(mask)), vreinterpretq_u8_s32(v)));
    }
    template <int bits>
    static TOKENLOOM_INLINE int8x16_t weight(Int stored) {
        const int8x16_t number = vreinterpretq_s8_s32(stored);
        return bits == 8 ? veorq_s8(number, vdupq_n_s8(-128)) : number;
    }

    static TOKENLOOM_INLINE void start(Sum& sum, Int value) { sum = value; }
    template <int bits>
    static TOKENLOOM_INLINE void add(Sum& sum, int8x16_t w, Int a) { sum = vdotq_s32(sum, w, vreinterpretq_s8_s32(a)); }
    template <int bits>
    static TOKENLOOM_INLINE void widen(Sum&) {}
    static TOKENLOOM_INLINE Float total(Sum sum) { return vcvtq_f32_s32(sum); }

    static TOKENLOOM_INLINE Float mul(Float a, Float b) { return vmulq_f32(a, b); }
    static TOKENLOOM_INLINE Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
    static TOKENLOOM_INLINE Float halves(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
    template <PackedFormat format>
    static TOKENLOOM_INLINE Float whole(const uint8_t* p) {
        if constexpr (format == PackedFormat::float16) {
            return halves(reinterpret_cast<const uint16_t*>(p));
        } else if constexpr (format == PackedFormat::bfloat16) {
            return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
        } else {
            return vld1q_f32(reinterpret_cast<const float*>(p));
        }
    }
};

}  // namespace

const Kernels kNeonKernels = make_kernels<Neon>("neon", cpu_has_dotprod);

}  // namespace tokenloom
