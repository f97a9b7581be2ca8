// Candidates, their weights, the filters over them, and the draw.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "power_of_two.h"
#include "sampler.h"
#include "sampler_blocks.h"

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

// The `count` highest logits of a row that scan() has just seen, lower ids first among equals, into selected_ and
// chosen_ in ascending id. No sort: the count-th highest block maximum is a floor that at least `count` logits reach.
void Sampler::select(std::span<const float> row, std::size_t count) {
    count = std::min(count, row.size());
    float floor = -std::numeric_limits<float>::infinity();
    const auto cut = [this](std::size_t rank) {
        const auto at = order_.begin() + static_cast<std::ptrdiff_t>(rank - 1);
        std::nth_element(order_.begin(), at, order_.end(), std::greater<>());
        return *at;
    };
    if (count <= maxima_.size()) {
        order_.assign(maxima_.begin(), maxima_.end());
        floor = cut(count);
    }
    selected_.clear();
    order_.clear();
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
        if (maxima_[block] < floor) {
            continue;
        }
        const std::span<const float> part = block_of(row, block);
        for (std::size_t index = 0; index < part.size(); ++index) {
            if (part[index] >= floor) {
                selected_.push_back(static_cast<std::int32_t>(block * block_size + index));
                order_.push_back(part[index]);
            }
        }
    }
    const float lowest = cut(count);
    const auto above = std::count_if(order_.begin(), order_.end(), [lowest](float value) { return value > lowest; });
    auto equals = static_cast<std::ptrdiff_t>(count) - above;
    std::erase_if(selected_, [&](std::int32_t id) {
        const float value = row[static_cast<std::size_t>(id)];
        return value < lowest || (value == lowest && equals-- <= 0);
    });
    chosen_.clear();
    for (const std::int32_t id : selected_) {
        chosen_.push_back(row[static_cast<std::size_t>(id)]);
    }
}

// Temperature as a factor of exponents of 2, in one pass: the weights, and each block's sum and largest as add_up() has them.
void Sampler::weigh(std::span<const float> logits, float best, double temperature) {
    // Below float32's smallest normal number a temperature already leaves nothing but the best.
    using limits = std::numeric_limits<float>;
    const float factor = 1.44269504f / static_cast<float>(std::clamp<double>(temperature, limits::min(), limits::max()));
    const std::size_t blocks = block_count(logits.size());
    weights_.resize(logits.size());
    sums_.resize(blocks);
    tops_.resize(blocks);
    total_ = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::span<const float> part = block_of(logits, block);
        float* const weights = weights_.data() + block * block_size;
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
            std::fill(rest, rest + block_lanes, -limits::infinity());
            std::copy(part.begin() + static_cast<std::ptrdiff_t>(at), part.end(), rest);
            store8(rest, weighed(rest));
            std::copy_n(rest, part.size() - at, weights + at);
        }
        sums_[block] = total_of(lanes);
        tops_[block] = largest_of(most);
        total_ += sums_[block];
    }
}

// Sum and largest of a block, and its share of the total; called block by block.
void Sampler::add_up(std::size_t block) {
    const std::span<const float> part = block_of(weights_, block);
    sums_[block] = block_sum(part);
    tops_[block] = block_max(part);
    total_ += sums_[block];
}

// The sum of the weights that are at least so much.
double Sampler::sum_from(float least) const {
    double sum = 0;
    for (std::size_t block = 0; block < tops_.size(); ++block) {
        if (tops_[block] >= least) {
            sum += block_sum_from(block_of(weights_, block), least);
        }
    }
    return sum;
}

// Candidates of at least that weight into kept_.
void Sampler::keep(float least) {
    if (kept_.size() < weights_.size()) {
        kept_.resize(weights_.size());
    }
    kept_count_ = 0;
    for (std::size_t block = 0; block < tops_.size(); ++block) {
        if (tops_[block] < least) {
            continue;
        }
        const std::span<const float> part = block_of(weights_, block);
        for (std::size_t index = 0; index < part.size(); ++index) {
            kept_[kept_count_] = static_cast<std::int32_t>(block * block_size + index);
            kept_count_ += part[index] >= least ? 1 : 0;
        }
    }
}

// Makes what is in kept_ the candidates.
void Sampler::adopt() {
    if (whole_) {
        selected_.assign(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(kept_count_));
    }
    for (std::size_t place = 0; place < kept_count_; ++place) {
        const auto from = static_cast<std::size_t>(kept_[place]);  // never before the place
        weights_[place] = weights_[from];
        if (!whole_) {
            selected_[place] = selected_[from];
        }
    }
    whole_ = false;
    weights_.resize(kept_count_);
    selected_.resize(kept_count_);
    sums_.resize(block_count(kept_count_));
    tops_.resize(sums_.size());
    total_ = 0;
    for (std::size_t block = 0; block < sums_.size(); ++block) {
        add_up(block);
    }
}

// Looks for the power of two that the last kept weight reaches but not its double: what is above is kept, what is below is
// not, and of those in between, put in buckets by their next bits, only one bucket needs sorting.
void Sampler::keep_top_p(double top_p) {
    const double goal = top_p * total_;
    float least = 1.0f;
    do {
        least /= 64;
    } while (sum_from(least) < goal && least > 1e-30f);
    keep(least);
    adopt();  // few, so that the rest of the search is quick
    for (const float step : {8.0f, 4.0f, 2.0f}) {
        least = sum_from(least * step) >= goal ? least * step : least;
    }
    const float above = 2 * least;
    double kept = sum_from(above);

    constexpr int buckets = 32;
    const auto weight_of = [this](std::int32_t candidate) { return weights_[static_cast<std::size_t>(candidate)]; };
    const auto bucket_of = [](float weight) { return std::bit_cast<std::uint32_t>(weight) >> 18 & (buckets - 1); };
    double mass[buckets] = {};
    keep(least);
    between_.clear();
    for (std::size_t place = 0; place < kept_count_; ++place) {
        if (const float weight = weight_of(kept_[place]); weight < above) {
            between_.push_back(kept_[place]);
            mass[bucket_of(weight)] += static_cast<double>(weight);
        }
    }
    std::uint32_t last = buckets - 1;
    while (last > 0 && kept + mass[last] < goal) {
        kept += mass[last--];
    }
    std::erase_if(between_, [&](std::int32_t candidate) { return bucket_of(weight_of(candidate)) != last; });
    std::sort(between_.begin(), between_.end(), [&](std::int32_t one, std::int32_t other) {
        return weight_of(one) > weight_of(other) || (weight_of(one) == weight_of(other) && one < other);
    });
    std::size_t enough = 0;
    while (enough < between_.size() && kept < goal) {
        kept += static_cast<double>(weight_of(between_[enough++]));
    }
    // The last one that is kept: its equals with higher ids are not.
    const std::int32_t end = enough == 0 ? -1 : between_[enough - 1];
    const float lowest = enough == 0 ? above : weight_of(end);
    const auto dropped = [&](std::int32_t candidate) {
        return weight_of(candidate) < lowest || (weight_of(candidate) == lowest && candidate > end);
    };
    kept_count_ = static_cast<std::size_t>(
        std::remove_if(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(kept_count_), dropped) - kept_.begin());
    adopt();
}

std::size_t Sampler::draw(double uniform) const {
    const double target = uniform * total_;
    double below = 0;
    std::size_t last = 0;  // the last block with any weight, should rounding carry the target past the end
    for (std::size_t block = 0; block < sums_.size(); ++block) {
        last = sums_[block] > 0 ? block : last;
        if (below + sums_[block] > target) {
            break;
        }
        below += sums_[block];
    }
    const std::span<const float> part = block_of(weights_, last);
    std::size_t drawn = 0;
    for (std::size_t index = 0; index < part.size(); ++index) {
        if (part[index] > 0) {
            drawn = index;
            below += static_cast<double>(part[index]);
            if (below > target) {
                break;
            }
        }
    }
    return last * block_size + drawn;
}

}  // namespace tokenloom
