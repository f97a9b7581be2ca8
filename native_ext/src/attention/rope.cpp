// Built like the portable kernels; nothing in here is fused.

#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/vector8.h"

namespace tokenloom {

namespace {

// Of an angle of either sign up to some millions: a multiple of pi/2, in three parts of which the first two have so few
// bits that their products are exact, taken away; then Taylor series up to r^15 and r^16, |r| <= pi/4.
void sine_cosine(double angle, double& sine, double& cosine) {
    const double turns = std::nearbyint(angle * (2.0 / std::numbers::pi));
    double r = angle - turns * 0x1.921fb54p+0;
    r = r - turns * 0x1.10b46118p-30;
    r = r - turns * 0x1.313198a2e037p-61;
    const double square = r * r;
    double s = -1.0 / 1307674368000.0;
    for (const double factorial : {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0}) {
        s = s * square + factorial;
    }
    s = s * square * r + r;
    double c = 1.0 / 20922789888000.0;
    for (const double factorial :
         {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0}) {
        c = c * square + factorial;
    }
    const double quarter = turns - 4 * std::floor(turns / 4);
    sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

}  // namespace

// The library's functions on long double are of one kind on every x86, unlike those on double.
Rope::Rope(const RopeParams& params, const float* factors) {
    const int pairs = params.dimensions / 2;
    const auto base = static_cast<long double>(params.freq_base);
    const auto scale = static_cast<long double>(params.freq_scale);
    // The pair that turns so many times over the original context.
    const auto pair_turning = [&](float turns) {
        return params.dimensions * std::log(params.original_context / (turns * 2 * std::numbers::pi_v<long double>)) / (2 * std::log(base));
    };
    const long double low = std::max(0.0L, std::floor(pair_turning(params.beta_fast)));
    const long double high = std::min<long double>(params.dimensions - 1, std::ceil(pair_turning(params.beta_slow)));
    for (int i = 0; i < pairs; ++i) {
        const long double whole = std::pow(base, -2.0L * i / params.dimensions) / (factors == nullptr ? 1.0L : factors[i]);
        long double frequency = whole * scale;
        if (params.ext_factor != 0.0f) {
            const long double ramp = 1 - std::clamp((i - low) / std::max(0.001L, high - low), 0.0L, 1.0L);
            const long double mix = ramp * params.ext_factor;
            frequency = frequency * (1 - mix) + whole * mix;
        }
        frequencies_.push_back(static_cast<double>(frequency));
    }
    magnitude_ = params.attn_factor;
    if (params.ext_factor != 0.0f) {
        magnitude_ *= 1 + static_cast<double>(0.1L * std::log(1 / scale));
        magnitude_ /= 1 + static_cast<double>(0.1L * params.log_multiplier * std::log(1 / scale));
    }
}

void Rope::angles(int position, float* out) const {
    float* neighbours = out + dimensions();
    for (size_t i = 0; i < frequencies_.size(); ++i) {
        double sine, cosine;
        sine_cosine(position * frequencies_[i], sine, cosine);
        out[2 * i] = out[2 * i + 1] = static_cast<float>(cosine * magnitude_);
        neighbours[2 * i + 1] = static_cast<float>(sine * magnitude_);
        neighbours[2 * i] = -neighbours[2 * i + 1];
    }
}

namespace {

void turn_neighbours(const float* x, const float* angles, int dimensions, float scale, float* to) {
    const float* neighbours = angles + dimensions;
    int d = 0;
    for (; d + 8 <= dimensions; d += 8) {
        Float8 v, own, other;
        load8(v, x + d);
        load8(own, angles + d);
        load8(other, neighbours + d);
        const Float8 swapped = Float8{v[1], v[0], v[3], v[2], v[5], v[4], v[7], v[6]};
        store8(to + d, (v * own + swapped * other) * scale);
    }
    for (; d < dimensions; d += 2) {
        const float first = x[d], second = x[d + 1];
        to[d] = (first * angles[d] + second * neighbours[d]) * scale;
        to[d + 1] = (second * angles[d + 1] + first * neighbours[d + 1]) * scale;
    }
}

void turn_halves(const float* x, const float* angles, int dimensions, float scale, float* to) {
    const float* neighbours = angles + dimensions;
    const int half = dimensions / 2;
    for (int i = 0; i < half; ++i) {
        const float first = x[i], second = x[half + i];
        to[i] = (first * angles[2 * i] + second * neighbours[2 * i]) * scale;
        to[half + i] = (second * angles[2 * i + 1] + first * neighbours[2 * i + 1]) * scale;
    }
}

}  // namespace

void Rope::turn(const float* x, int head_size, const float* angles, int dimensions, RopeOrder order, float scale, float* to) {
    if (order == RopeOrder::neighbours) {
        turn_neighbours(x, angles, dimensions, scale, to);
    } else {
        turn_halves(x, angles, dimensions, scale, to);
    }
    for (int d = dimensions; d < head_size; ++d) {
        to[d] = x[d] * scale;
    }
}

}  // namespace tokenloom
