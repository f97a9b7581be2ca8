// Candidates' weights in vectors of eight. Built like attention.cpp, for what ggml itself requires of the CPU.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/power_of_two.h"
#include "kernels/row_blocks.h"
#include "kernels/weigh.h"

namespace tokenloom {

namespace {

// a * b + c, rounded once.
Float8 fused(const Float8& a, const Float8& b, const Float8& c) {
#ifdef __FMA__
    __m256 x, y, z;
    std::memcpy(&x, &a, sizeof(x));
    std::memcpy(&y, &b, sizeof(y));
    std::memcpy(&z, &c, sizeof(z));
    x = _mm256_fmadd_ps(x, y, z);
    Float8 out;
    std::memcpy(&out, &x, sizeof(out));
    return out;
#else
    Float8 out;
    for (int i = 0; i < 8; ++i) {
        out[i] = std::fma(a[i], b[i], c[i]);
    }
    return out;
#endif
}

// 2^x for x <= 0 (power_of_two.h).
Float8 power_of_two(const Float8& x) {
    const Float8 shifted = x + kRoundingShift;
    const Float8 rest = x - (shifted - kRoundingShift);
    Float8 p = splat8(kPowerPolynomial[5]);
    for (int i = 4; i >= 0; --i) {
        p = fused(p, rest, splat8(kPowerPolynomial[i]));
    }
    Unsigned8 exponent, bits;
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    std::memcpy(&bits, &p, sizeof(bits));
    bits += exponent << 23;
    std::memcpy(&p, &bits, sizeof(p));
    return x < kLowestPower ? Float8{} : p;
}

}  // namespace

void weigh_portable(const float* logits, int64_t count, float best, float factor, float* weights, double* sums, float* tops) {
    const std::span<const float> row(logits, static_cast<std::size_t>(count));
    for (std::size_t block = 0; block < block_count(row.size()); ++block, weights += block_size) {
        const std::span<const float> part = block_of(row, block);
        Double8 lanes = {};
        Float8 most = {};
        const auto weighed = [&](const float* values) {
            Float8 v;
            load8(v, values);
            v = power_of_two((v - best) * factor);
            lanes += __builtin_convertvector(v, Double8);
            most = max8(v, most);
            return v;
        };
        std::size_t at = 0;
        for (; at + block_lanes <= part.size(); at += block_lanes) {
            store8(weights + at, weighed(part.data() + at));
        }
        if (at < part.size()) {
            float rest[block_lanes];
            std::fill(rest, rest + block_lanes, -std::numeric_limits<float>::infinity());
            std::copy(part.begin() + static_cast<std::ptrdiff_t>(at), part.end(), rest);
            store8(rest, weighed(rest));
            std::copy_n(rest, part.size() - at, weights + at);
        }
        sums[block] = total_of(lanes);
        tops[block] = largest_of(most);
    }
}

}  // namespace tokenloom
