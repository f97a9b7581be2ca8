// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011 (section 3.3 and table 2). A pure function of counter and key: it has no state, so a number depends
// on where it is used and not on what was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace tokenloom {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Ten rounds; four words of 32 random bits.
constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) noexcept {
    constexpr std::uint64_t multiplier0 = 0xD2511F53u;
    constexpr std::uint64_t multiplier1 = 0xCD9E8D57u;
    constexpr std::uint32_t weyl0 = 0x9E3779B9u;  // the golden ratio
    constexpr std::uint32_t weyl1 = 0xBB67AE85u;  // the square root of 3, less 1
    for (int round = 0; round < 10; ++round) {
        if (round > 0) {
            key[0] += weyl0;
            key[1] += weyl1;
        }
        const std::uint64_t product0 = multiplier0 * counter[0];
        const std::uint64_t product1 = multiplier1 * counter[2];
        counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(product1),
                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(product0)};
    }
    return counter;
}

// A uniform number in [0, 1) for one position of one session: k * 2^-53 where k is the top 53 bits of the 64-bit number
// (word 1, word 0), from key = seed (low word first) and counter = position (low word first, upper words 0).
constexpr double philox_uniform(std::uint64_t seed, std::uint64_t position) noexcept {
    const PhiloxCounter words = philox4x32(
        {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0u, 0u},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[1]) << 32) | words[0];
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace tokenloom
