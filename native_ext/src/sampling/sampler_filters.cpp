// Candidates, their weights, the filters over them, and the draw.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/sampler.h"
#include "kernels/row_blocks.h"

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

// Temperature as a factor of exponents of 2, in one pass: the weights, and each block's sum and largest as add_up() has them.
void Sampler::weigh(std::span<const float> logits, float best, double temperature) {
    // Below float32's smallest normal number a temperature already leaves nothing but the best.
    using limits = std::numeric_limits<float>;
    const float factor = 1.44269504f / static_cast<float>(std::clamp<double>(temperature, limits::min(), limits::max()));
    const std::size_t blocks = block_count(logits.size());
    weights_.resize(logits.size());
    sums_.resize(blocks);
    tops_.resize(blocks);
    kernels_->weigh(logits.data(), static_cast<std::int64_t>(logits.size()), best, factor, weights_.data(), sums_.data(), tops_.data());
    total_ = 0;
    for (const double sum : sums_) {
        total_ += sum;
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
