// A row cut into blocks: whole blocks are skipped by their maximum or their sum, and within one a fixed number of lanes
// lets the compiler use vectors without changing the order of any sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/vector8.h"
#include "kernels/weigh.h"

namespace tokenloom {

inline constexpr std::size_t block_size = kWeighed;
inline constexpr std::size_t block_lanes = 8;

inline std::size_t block_count(std::size_t length) noexcept { return (length + block_size - 1) / block_size; }

inline std::span<const float> block_of(std::span<const float> row, std::size_t block) noexcept {
    const std::size_t begin = block * block_size;
    return row.subspan(begin, std::min(block_size, row.size() - begin));
}

using Double8 = double __attribute__((vector_size(64)));

// Lanes 0 and 4, 1 and 5, ... first; then in pairs of neighbours.
inline double total_of(const Double8& lanes) noexcept {
    using Double4 = double __attribute__((vector_size(32)));
    Double4 halves[2];
    std::memcpy(halves, &lanes, sizeof(lanes));
    const Double4 four = halves[0] + halves[1];
    return (four[0] + four[1]) + (four[2] + four[3]);
}

inline float largest_of(const Float8& lanes) noexcept {
    using Float4 = float __attribute__((vector_size(16)));
    Float4 halves[2];
    std::memcpy(halves, &lanes, sizeof(lanes));
    const Float4 four = halves[0] > halves[1] ? halves[0] : halves[1];
    const float one = four[0] > four[1] ? four[0] : four[1];
    const float other = four[2] > four[3] ? four[2] : four[3];
    return one > other ? one : other;
}

// The sum of elements that are at least so much, none of which is negative. Lane i holds that of elements i, i + 8, ...
inline double block_sum_from(std::span<const float> part, float least) noexcept {
    Double8 lanes = {};
    std::size_t at = 0;
    for (; at + block_lanes <= part.size(); at += block_lanes) {
        Float8 values;
        load8(values, part.data() + at);
        values = values >= splat8(least) ? values : Float8{};
        lanes += __builtin_convertvector(values, Double8);
    }
    for (std::size_t lane = 0; at + lane < part.size(); ++lane) {
        lanes[lane] += part[at + lane] >= least ? static_cast<double>(part[at + lane]) : 0.0;
    }
    return total_of(lanes);
}

inline double block_sum(std::span<const float> part) noexcept { return block_sum_from(part, 0.0f); }

// The largest element; -inf of none, and NaN counts as none.
inline float block_max(std::span<const float> part) noexcept {
    Float8 lanes = splat8(-std::numeric_limits<float>::infinity());
    std::size_t at = 0;
    for (; at + block_lanes <= part.size(); at += block_lanes) {
        Float8 values;
        load8(values, part.data() + at);
        lanes = max8(values, lanes);
    }
    for (; at < part.size(); ++at) {
        lanes[0] = part[at] > lanes[0] ? part[at] : lanes[0];
    }
    return largest_of(lanes);
}

// Whether every element is a number below infinity, or -inf.
inline bool block_sound(std::span<const float> part) noexcept {
    constexpr float largest = std::numeric_limits<float>::max();
    Int8 sound = ~Int8{};
    std::size_t at = 0;
    for (; at + block_lanes <= part.size(); at += block_lanes) {
        Float8 values;
        load8(values, part.data() + at);
        sound &= values <= splat8(largest);
    }
    bool all = true;
    for (; at < part.size(); ++at) {
        all = all && part[at] <= largest;
    }
    for (std::size_t lane = 0; lane < block_lanes; ++lane) {
        all = all && sound[lane] != 0;
    }
    return all;
}

}  // namespace tokenloom
