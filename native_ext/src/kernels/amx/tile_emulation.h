// AMX's tiles in plain C++, for tests on CPUs that have none: LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBSSD
// as the Intel SDM (volume 2) describes them. What is a fault of the CPU there throws std::logic_error that says which.
//
// Each thread has its tiles, as each of the CPU's has. Included where the instruction set differs: declarations only.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenloom {

// The 64 bytes that LDTILECFG reads.
struct TileConfiguration {
    uint8_t palette;  // 1: eight tiles of up to 16 rows of up to 64 bytes; 0: none
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[8];
    uint8_t more_reserved[16];
    uint8_t rows[8];
    uint8_t last_reserved[8];
};
static_assert(sizeof(TileConfiguration) == 64);

namespace emulated {

void load_configuration(const void* configuration);
void release();
void clear(int tile);
void load(int tile, const void* from, size_t stride);
void store(int tile, void* to, size_t stride);
// sums[m][n] += left[m][4 * k + i] * right[k][4 * n + i] over i from 0 to 3 and all k, int8 in int32.
void add_products(int sums, int left, int right);

// Calls of add_products so far, on all threads.
uint64_t products();

}  // namespace emulated

}  // namespace tokenloom
