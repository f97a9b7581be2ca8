// Settings, bias and penalties, greedy choice, log-probabilities; the filters and the draw are in sampler_filters.cpp.
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "sampling/philox.h"
#include "kernels/row_blocks.h"

namespace tokenloom {

namespace {

constexpr double largest = std::numeric_limits<float>::max();
constexpr float excluded = -std::numeric_limits<float>::infinity();

std::string shown(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
}

void require(bool holds, const char* field, const std::string& value, const std::string& limit) {
    if (!holds) {
        throw BatchError(std::string(field) + " is " + value + "; it must be " + limit);
    }
}

void require_finite(const char* field, double value) {
    require(std::isfinite(value), field, shown(value), "a finite number");
}

// Into the range of float32, so that no later step meets an infinity that was not asked for.
double bounded(double value) { return std::clamp(value, -largest, largest); }

}  // namespace

void validate(const Sampling& sampling, std::int64_t vocabulary) {
    const std::string size = std::to_string(vocabulary);
    require(std::isfinite(sampling.temperature) && sampling.temperature >= 0, "temperature",
            shown(sampling.temperature), "a finite number of at least 0");
    require(sampling.top_k >= 0, "top_k", std::to_string(sampling.top_k), "at least 0");
    require(sampling.top_p > 0 && sampling.top_p <= 1, "top_p", shown(sampling.top_p), "above 0 and at most 1");
    require(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", shown(sampling.min_p), "within 0 and 1");
    require(std::isfinite(sampling.repetition_penalty) && sampling.repetition_penalty > 0, "repetition_penalty",
            shown(sampling.repetition_penalty), "a finite number above 0");
    require_finite("presence_penalty", sampling.presence_penalty);
    require_finite("frequency_penalty", sampling.frequency_penalty);
    require(sampling.penalty_window >= -1, "penalty_window", std::to_string(sampling.penalty_window), "at least -1");
    require(sampling.logprobs >= -1 && sampling.logprobs <= vocabulary, "logprobs", std::to_string(sampling.logprobs),
            "within 0 and the vocabulary's " + size);
    for (const auto& [token, addend] : sampling.logit_bias) {
        require(token >= 0 && token < vocabulary, "logit_bias", "for token " + std::to_string(token),
                "for tokens within 0 and " + std::to_string(vocabulary - 1));
        require(addend <= std::numeric_limits<double>::max(), "logit_bias",
                shown(addend) + " for token " + std::to_string(token), "a finite number or -inf");
    }
}

// One pass: the highest logit of every block and of the row, and that nothing in it is NaN or +inf.
Sampler::Best Sampler::scan(std::span<const float> row) {
    const std::size_t blocks = block_count(row.size());
    maxima_.resize(blocks);
    bool sound = true;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::span<const float> part = block_of(row, block);
        maxima_[block] = block_max(part);
        sound = block_sound(part) && sound;
    }
    if (!sound) {
        const auto found = std::find_if(row.begin(), row.end(),
                                        [](float value) { return !(value <= std::numeric_limits<float>::max()); });
        throw EngineError("the logit of token " + std::to_string(found - row.begin()) + " is " + shown(*found) +
                          "; logits must be numbers below infinity");
    }
    return best_of(row);
}

Sampler::Best Sampler::best_of(std::span<const float> row) const {
    const auto highest = std::max_element(maxima_.begin(), maxima_.end());  // the first of equals
    const std::span<const float> part = block_of(row, static_cast<std::size_t>(highest - maxima_.begin()));
    const auto found = std::find(part.begin(), part.end(), *highest);
    return {*highest, static_cast<std::int32_t>(&*found - row.data())};
}

std::span<const float> Sampler::adjust(std::span<const float> row, std::span<const std::int32_t> tokens,
                                       const Sampling& sampling) {
    const bool penalties = sampling.penalty_window != 0 &&
                           (sampling.repetition_penalty != 1.0 || sampling.presence_penalty != 0.0 ||
                            sampling.frequency_penalty != 0.0);
    if (sampling.logit_bias.empty() && !penalties) {
        return row;
    }
    adjusted_.assign(row.begin(), row.end());
    changed_.clear();
    for (const auto& [token, addend] : sampling.logit_bias) {
        changed_.push_back(static_cast<std::int32_t>(token));
        float& logit = adjusted_[static_cast<std::size_t>(token)];
        if (addend == -std::numeric_limits<double>::infinity()) {
            logit = excluded;
        } else if (logit != excluded) {
            logit = static_cast<float>(bounded(logit + addend));
        }
    }
    if (penalties) {
        const auto window = static_cast<std::uint64_t>(sampling.penalty_window);  // -1 becomes the largest number
        penalize(tokens.last(static_cast<std::size_t>(std::min<std::uint64_t>(window, tokens.size()))), sampling);
    }
    for (const std::int32_t token : changed_) {
        const std::size_t block = static_cast<std::size_t>(token) / block_size;
        maxima_[block] = block_max(block_of(adjusted_, block));
    }
    return adjusted_;
}

void Sampler::penalize(std::span<const std::int32_t> tokens, const Sampling& sampling) {
    for (const std::int32_t token : tokens) {
        if (token < 0 || static_cast<std::size_t>(token) >= adjusted_.size()) {
            throw BatchError("the sequence holds token " + std::to_string(token) + "; it must be within 0 and " +
                             std::to_string(adjusted_.size() - 1));
        }
    }
    seen_.resize(adjusted_.size(), 0);
    for (const std::int32_t token : tokens) {
        seen_[static_cast<std::size_t>(token)] += 1;
    }
    for (const std::int32_t token : tokens) {
        const auto index = static_cast<std::size_t>(token);
        const double times = std::exchange(seen_[index], 0);
        if (times == 0 || adjusted_[index] == excluded) {
            continue;
        }
        double logit = adjusted_[index];
        logit = bounded(logit > 0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty);
        logit = bounded(logit - sampling.presence_penalty);
        logit = bounded(logit - sampling.frequency_penalty * times);
        adjusted_[index] = static_cast<float>(logit);
        changed_.push_back(token);
    }
}

// The natural log of the sum of e^logit.
double Sampler::log_sum(std::span<const float> row, float best) {
    weigh(row, best, 1.0);
    return static_cast<double>(best) + std::log(total_);
}

Sampled Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> tokens, std::uint64_t position,
                        const Sampling& sampling) {
    if (logits.empty()) {
        throw EngineError("the row of logits is empty");
    }
    Best best = scan(logits);
    if (best.logit == excluded) {
        throw EngineError("every logit of the row is -inf");
    }
    Sampled out;
    double normalizer = 0;
    if (sampling.logprobs >= 0) {
        out.with_logprobs = true;
        normalizer = log_sum(logits, best.logit);
        if (sampling.logprobs > 0) {
            select(logits, static_cast<std::size_t>(sampling.logprobs));
            for (std::size_t index = 0; index < selected_.size(); ++index) {
                out.top.emplace_back(selected_[index], static_cast<double>(chosen_[index]));
            }
            std::stable_sort(out.top.begin(), out.top.end(),
                             [](const auto& one, const auto& other) { return one.second > other.second; });
            for (auto& [token, logprob] : out.top) {
                logprob -= normalizer;
            }
        }
    }

    std::span<const float> row = adjust(logits, tokens, sampling);
    if (row.data() != logits.data()) {
        best = best_of(row);
        if (best.logit == excluded) {
            throw BatchError("logit_bias excludes every token of the vocabulary; at least 1 must be left");
        }
    }
    if (sampling.temperature == 0) {
        out.token = best.token;
    } else {
        whole_ = sampling.top_k == 0 || static_cast<std::uint64_t>(sampling.top_k) >= row.size();
        if (!whole_) {
            select(row, static_cast<std::size_t>(sampling.top_k));
            row = chosen_;
        }
        weigh(row, best.logit, sampling.temperature);
        if (sampling.top_p < 1) {
            keep_top_p(sampling.top_p);
        }
        if (sampling.min_p > 0) {
            auto least = static_cast<float>(sampling.min_p);
            if (static_cast<double>(least) < sampling.min_p) {
                least = std::nextafter(least, 2.0f);  // the first float32 that is not below it
            }
            keep(least);
            adopt();
        }
        const std::size_t drawn = draw(philox_uniform(sampling.seed, position));
        out.token = whole_ ? static_cast<std::int32_t>(drawn) : selected_[drawn];
    }
    if (out.with_logprobs) {
        out.logprob = static_cast<double>(logits[static_cast<std::size_t>(out.token)]) - normalizer;
    }
    return out;
}

}  // namespace tokenloom
