// Candidates, their weights, the filters over them, and the draw.
#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "exp_float.h"
#include "sampler.h"
#include "sampler_blocks.h"

namespace tokenloom {

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

void Sampler::weigh(std::span<const float> logits, float best, double temperature) {
    // Below float32's smallest normal number a temperature already leaves nothing but the best.
    using limits = std::numeric_limits<float>;
    const auto divisor = static_cast<float>(std::clamp<double>(temperature, limits::min(), limits::max()));
    const std::size_t count = logits.size();
    weights_.resize(count);
    float* const weights = weights_.data();
    for (std::size_t index = 0; index < count; ++index) {
        const float scaled = (logits[index] - best) / divisor;
        weights[index] = scaled < exp_float_lowest ? exp_float_lowest : scaled;
    }
    for (std::size_t index = 0; index < count; ++index) {
        weights[index] = exp_float(weights[index]);
    }
}

// Weights are positive floats, so their upper bits order them: sum by bucket of equal upper bits, go down to the bucket
// in which the sum is reached, and sort only that one.
void Sampler::keep_top_p(double top_p) {
    constexpr int shift = 20;  // sign, exponent and three bits of the fraction are left
    const auto bucket_of = [](float weight) { return std::bit_cast<std::uint32_t>(weight) >> shift; };
    mass_.assign(bucket_of(1.0f) + 1, 0.0);
    for (const float weight : weights_) {
        mass_[bucket_of(weight)] += static_cast<double>(weight);
    }
    double total = 0;
    for (std::size_t bucket = mass_.size(); bucket-- > 0;) {
        total += mass_[bucket];
    }
    const double goal = top_p * total;
    double kept = 0;
    std::size_t last = mass_.size() - 1;
    while (last > 0 && kept + mass_[last] < goal) {
        kept += mass_[last--];
    }

    bucket_.clear();
    for (std::size_t index = 0; index < weights_.size(); ++index) {
        const std::size_t bucket = bucket_of(weights_[index]);
        if (bucket == last) {
            bucket_.push_back(static_cast<std::int32_t>(index));
        } else if (bucket < last) {
            weights_[index] = 0;
        }
    }
    const auto weight_of = [this](std::int32_t index) { return weights_[static_cast<std::size_t>(index)]; };
    std::sort(bucket_.begin(), bucket_.end(), [&](std::int32_t one, std::int32_t other) {
        return weight_of(one) > weight_of(other) || (weight_of(one) == weight_of(other) && one < other);
    });
    for (const std::int32_t index : bucket_) {
        if (kept >= goal) {
            weights_[static_cast<std::size_t>(index)] = 0;
        } else {
            kept += static_cast<double>(weight_of(index));
        }
    }
}

void Sampler::keep_min_p(double min_p) {
    for (float& weight : weights_) {
        weight = static_cast<double>(weight) < min_p ? 0.0f : weight;
    }
}

std::size_t Sampler::draw(double uniform) const {
    const std::size_t blocks = block_count(weights_.size());
    double total = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
        total += block_sum(weights_, block);
    }
    const double target = uniform * total;
    double below = 0;
    std::size_t last = 0;  // the last block with any weight, should rounding carry the target past the end
    for (std::size_t block = 0; block < blocks; ++block) {
        const double sum = block_sum(weights_, block);
        last = sum > 0 ? block : last;
        if (below + sum > target) {
            break;
        }
        below += sum;
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
