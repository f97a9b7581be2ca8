// A row cut into blocks: whole blocks are skipped by their maximum or their sum, and within one a fixed number of lanes
// lets the compiler use vectors without changing the order of any sum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace tokenloom {

inline constexpr std::size_t block_size = 64;
inline constexpr std::size_t block_lanes = 8;

inline std::size_t block_count(std::size_t length) noexcept { return (length + block_size - 1) / block_size; }

inline std::span<const float> block_of(std::span<const float> row, std::size_t block) noexcept {
    const std::size_t begin = block * block_size;
    return row.subspan(begin, std::min(block_size, row.size() - begin));
}

// Lane i holds the sum of elements i, i + 8, ...; then lanes are added in pairs of neighbours.
inline double block_sum(std::span<const float> row, std::size_t block) noexcept {
    const std::span<const float> part = block_of(row, block);
    double lanes[block_lanes] = {};
    std::size_t at = 0;
    for (; at + block_lanes <= part.size(); at += block_lanes) {
        for (std::size_t lane = 0; lane < block_lanes; ++lane) {
            lanes[lane] += static_cast<double>(part[at + lane]);
        }
    }
    for (std::size_t lane = 0; at + lane < part.size(); ++lane) {
        lanes[lane] += static_cast<double>(part[at + lane]);
    }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace tokenloom
