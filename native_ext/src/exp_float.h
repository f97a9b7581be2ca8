// e^x for x <= 0 with the same bits on every machine: IEEE float32 operations in one order, which a compiler may spread
// over vector lanes but not fuse (-ffp-contract=off). The C library's expf differs between versions and processors.
//
// x = k ln 2 + r with |r| <= ln(2)/2; e^r by its Taylor series up to r^7 / 7! (remainder below 6e-9 of the result), times
// 2^k by writing the exponent. Relative error below 2.5e-7. Where k would be -127 (x below -87.68), at the end
// of float32's normal range, the exponent written is 0 and so is the result.
#pragma once

#include <bit>
#include <cstdint>

namespace tokenloom {

// The least argument exp_float() takes; its result is 0.
inline constexpr float exp_float_lowest = -88.0f;

// exp_float_lowest <= x <= 0. The caller bounds x, in a loop of its own: a choice in this one keeps compilers from
// using vectors.
inline float exp_float(float x) noexcept {
    // Adding and taking away 1.5 * 2^23 leaves the nearest integer.
    const float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    // ln 2 in two parts, the first short enough that k times it is exact.
    float r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float sum = 1.0f / 5040.0f;
    sum = sum * r + 1.0f / 720.0f;
    sum = sum * r + 1.0f / 120.0f;
    sum = sum * r + 1.0f / 24.0f;
    sum = sum * r + 1.0f / 6.0f;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    return sum * std::bit_cast<float>((static_cast<std::int32_t>(k) + 127) << 23);
}

}  // namespace tokenloom
