// Built like the portable kernels; nothing in here is fused.

#include "attention/head_turn.h"

#include <cmath>
#include <cstring>

#include "kernels/vector8.h"

namespace tokenloom {

namespace {

// The sum of (x - mean)^2.
float sum_of_squares(const float* x, int count, float mean) {
    Float8 sums = splat8(0.0f);
    int d = 0;
    for (; d + 8 <= count; d += 8) {
        Float8 v;
        load8(v, x + d);
        v = v - splat8(mean);
        sums += v * v;
    }
    float rest = 0.0f;
    for (; d < count; ++d) {
        rest += (x[d] - mean) * (x[d] - mean);
    }
    return sum8(sums) + rest;
}

float mean_of(const float* x, int count) {
    Float8 sums = splat8(0.0f);
    int d = 0;
    for (; d + 8 <= count; d += 8) {
        Float8 v;
        load8(v, x + d);
        sums += v;
    }
    float rest = 0.0f;
    for (; d < count; ++d) {
        rest += x[d];
    }
    return (sum8(sums) + rest) / static_cast<float>(count);
}

// to[d] = (x[d] - mean) * factor * weight[d].
void weighted(const float* x, int count, float mean, float factor, const float* weight, float* to) {
    for (int d = 0; d < count; ++d) {
        to[d] = (x[d] - mean) * factor * weight[d];
    }
}

}  // namespace

float inverse_rms(const float* x, int count, float epsilon) {
    return 1.0f / std::sqrt(sum_of_squares(x, count, 0.0f) / static_cast<float>(count) + epsilon);
}

void HeadTurn::make_other(const float* x, size_t row, int head, int size, float scale, float* to) const {
    const float* own = weight == nullptr || !weight_per_head ? weight : weight + static_cast<size_t>(head) * size;
    const float* at = angles + row * 2 * static_cast<size_t>(turned);
    scale = row_scales == nullptr ? scale : scale * row_scales[row];
    const auto normalize = [&](const float* from, float* into) {
        const float mean = norm == Norm::layer ? mean_of(from, size) : 0.0f;
        const float factor = norm == Norm::rows ? row_factors[row]
                                                : 1.0f / std::sqrt(sum_of_squares(from, size, mean) / static_cast<float>(size) + epsilon);
        weighted(from, size, mean, factor, own, into);
    };
    if (norm == Norm::none) {
        Rope::turn(x, size, at, turned, order, scale, to);
    } else if (norm_after) {
        Rope::turn(x, size, at, turned, order, 1.0f, to);
        normalize(to, to);
        for (int d = 0; d < size; ++d) {
            to[d] *= scale;
        }
    } else {
        normalize(x, to);
        Rope::turn(to, size, at, turned, order, scale, to);
    }
}

}  // namespace tokenloom
