// Built like the portable kernels; nothing in here is fused.

#include "graph/epilogue.h"

#include <cstring>

#include "kernels/vector8.h"

namespace tokenloom {

namespace {

// tanh(x) = (1 - e) / (1 + e) with e = e^(-2 |x|), and the sign of x.
Float8 capped(Float8 x, float cap) {
    const Float8 one = splat8(1.0f);
    const Float8 size = x < 0 ? -x : x;
    const Float8 e = exp8(size * splat8(-2.0f / cap));
    const Float8 y = (one - e) / (one + e) * splat8(cap);
    return x < 0 ? -y : y;
}

void cap_row(float* row, int count, float cap) {
    for (int i = 0; i < count; i += 8) {
        const size_t bytes = static_cast<size_t>(count - i < 8 ? count - i : 8) * sizeof(float);
        float lanes[8] = {};
        std::memcpy(lanes, row + i, bytes);
        Float8 x;
        load8(x, lanes);
        store8(lanes, capped(x, cap));
        std::memcpy(row + i, lanes, bytes);
    }
}

}  // namespace

void finish(const Epilogue& how, float* out, size_t stride, int tokens, int count) {
    for (int t = 0; t < tokens; ++t) {
        float* row = out + static_cast<size_t>(t) * stride;
        const auto scale = [&] {
            for (int i = 0; how.scale != nullptr && i < count; ++i) {
                row[i] *= *how.scale;
            }
        };
        if (!how.bias_first) {
            scale();
        }
        for (int i = 0; how.bias != nullptr && i < count; ++i) {
            row[i] += how.bias[i];
        }
        if (how.bias_first) {
            scale();
        }
        if (how.factor != 1.0f) {
            for (int i = 0; i < count; ++i) {
                row[i] *= how.factor;
            }
        }
        if (how.added != nullptr) {
            const float* added = how.added + static_cast<size_t>(t) * stride;
            for (int i = 0; i < count; ++i) {
                row[i] += added[i];
            }
        }
        if (how.cap != 0.0f) {
            cap_row(row, count, how.cap);
        }
    }
}

}  // namespace tokenloom
