// Built like the portable kernels; nothing in here is fused.

#include "graph/routing.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/vector8.h"
#include "models/key_reader.h"

namespace tokenloom {

namespace {

using Numbers = std::array<float, kMostExperts + 8>;

// The least that weights are divided by: float16's smallest normal number, as llama.cpp has it.
constexpr float kLeastSum = 6.103515625e-5f;

// numbers = e^(numbers - largest) / their sum, summed in eight lanes.
void softmax(float* numbers, int count) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < count; ++i) {
        largest = numbers[i] > largest ? numbers[i] : largest;
    }
    Float8 sums = splat8(0.0f);
    for (int i = 0; i < count; i += 8) {
        float lanes[8] = {};
        const size_t bytes = static_cast<size_t>(std::min(8, count - i)) * sizeof(float);
        std::memcpy(lanes, numbers + i, bytes);
        Float8 x;
        load8(x, lanes);
        x = exp8(x - splat8(largest));
        for (int lane = 0; lane < 8; ++lane) {
            x[lane] = i + lane < count ? x[lane] : 0.0f;
        }
        sums += x;
        store8(lanes, x);
        std::memcpy(numbers + i, lanes, bytes);
    }
    const float sum = sum8(sums);
    for (int i = 0; i < count; ++i) {
        numbers[i] /= sum;
    }
}

void sigmoid(float* numbers, int count) {
    for (int i = 0; i < count; ++i) {
        const float x = numbers[i];
        const float e = exp8(splat8(x < 0 ? x : -x))[0];
        numbers[i] = (x < 0 ? e : 1.0f) / (1.0f + e);
    }
}

// Marks with -infinity the experts of all groups but the best, which are those whose two best experts have the largest sums.
void keep_best_groups(float* scores, const Experts& experts) {
    const int size = experts.count / experts.groups;
    std::array<float, kMostExperts> sums;
    for (int group = 0; group < experts.groups; ++group) {
        float best = -std::numeric_limits<float>::infinity(), second = best;
        for (int i = group * size; i < (group + 1) * size; ++i) {
            if (scores[i] > best) {
                second = best;
                best = scores[i];
            } else if (scores[i] > second) {
                second = scores[i];
            }
        }
        sums[static_cast<size_t>(group)] = size > 1 ? best + second : best;
    }
    for (int group = 0; group < experts.groups; ++group) {
        int better = 0;
        for (int other = 0; other < experts.groups; ++other) {
            const float a = sums[static_cast<size_t>(other)], b = sums[static_cast<size_t>(group)];
            better += a > b || (a == b && other < group) ? 1 : 0;
        }
        if (better >= experts.groups_used) {
            std::fill_n(scores + group * size, size, -std::numeric_limits<float>::infinity());
        }
    }
}

}  // namespace

void Routing::reserve(int rows) {
    const size_t size = at(rows, 0);
    if (chosen_.size() < size) {
        chosen_.resize(size);
        weights_.resize(size);
        entries_.resize(size);
        rows_.resize(size);
    }
    first_.resize(static_cast<size_t>(experts_.count) + 1);
}

void Routing::choose(int row, const float* logits, const float* choice_bias) {
    const int count = experts_.count;
    Numbers chances;
    std::copy_n(logits, count, chances.begin());
    if (experts_.gating == Experts::Gating::softmax) {
        softmax(chances.data(), count);
    } else if (experts_.gating == Experts::Gating::sigmoid) {
        sigmoid(chances.data(), count);
    }
    Numbers scores;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        scores[i] = choice_bias == nullptr ? chances[i] : chances[i] + choice_bias[i];
    }
    if (experts_.groups > 1) {
        keep_best_groups(scores.data(), experts_);
    }
    std::array<bool, kMostExperts> taken{};
    float* weights = weights_.data() + at(row, 0);
    float sum = 0.0f;
    for (int place = 0; place < experts_.used; ++place) {
        int best = -1;
        for (int i = 0; i < count; ++i) {
            if (!taken[static_cast<size_t>(i)] && (best < 0 || scores[static_cast<size_t>(i)] > scores[static_cast<size_t>(best)])) {
                best = i;
            }
        }
        taken[static_cast<size_t>(best)] = true;
        chosen_[at(row, place)] = best;
        weights[place] = chances[static_cast<size_t>(best)];
        sum += weights[place];
    }
    if (experts_.gating == Experts::Gating::softmax_of_chosen) {
        softmax(weights, experts_.used);
    }
    for (int place = 0; place < experts_.used; ++place) {
        weights[place] = experts_.normalized ? weights[place] / (sum > kLeastSum ? sum : kLeastSum) : weights[place];
        weights[place] = experts_.scale == 1.0f ? weights[place] : weights[place] * experts_.scale;
    }
}

void Routing::arrange(int rows) {
    std::fill(first_.begin(), first_.end(), 0);
    const auto all = static_cast<int>(at(rows, 0));
    for (int i = 0; i < all; ++i) {
        ++first_[static_cast<size_t>(chosen_[static_cast<size_t>(i)]) + 1];
    }
    for (size_t expert = 1; expert < first_.size(); ++expert) {
        first_[expert] += first_[expert - 1];
    }
    // Counted up while they are handed out, and back afterwards.
    for (int i = 0; i < all; ++i) {
        const int entry = first_[static_cast<size_t>(chosen_[static_cast<size_t>(i)])]++;
        entries_[static_cast<size_t>(i)] = entry;
        rows_[static_cast<size_t>(entry)] = i / experts_.used;
    }
    for (size_t expert = first_.size() - 1; expert > 0; --expert) {
        first_[expert] = first_[expert - 1];
    }
    first_[0] = 0;
}

}  // namespace tokenloom
