// AMX's operations on tiles, as kernel_amx.h uses them: on the CPU's, or on emulated ones (tile_emulation.h).
//
// Tiles are used in sets of three: the sums, the left operand (a row of up to 16 tokens in each of the tile's rows) and the
// right one (16 rows of the matrix side by side, a k-group in each of the tile's rows). Two sets, so that the operations of
// one need not wait for the other's.

#pragma once

#include <cstddef>
#include <cstdint>

#ifdef TOKENLOOM_TILES
#include <immintrin.h>
#endif

#include "kernels/amx/tile_emulation.h"

namespace tokenloom {

namespace {

// Of the two sets; tiles 6 and 7 are not used. `tokens`: 1 to 16; `k_groups`: of a product, 1 to 16.
inline TileConfiguration configuration_of(int tokens, int k_groups) {
    TileConfiguration out = {};
    out.palette = 1;
    for (int set = 0; set < 2; ++set) {
        const int sums = 3 * set, left = sums + 1, right = sums + 2;
        out.rows[sums] = static_cast<uint8_t>(tokens);
        out.rows[left] = static_cast<uint8_t>(tokens);
        out.rows[right] = static_cast<uint8_t>(k_groups);
        out.row_bytes[sums] = 64;
        out.row_bytes[left] = static_cast<uint16_t>(4 * k_groups);
        out.row_bytes[right] = 64;
    }
    return out;
}

#ifdef TOKENLOOM_TILES

struct Tiles {
    // Intrinsics of some compilers do not say that they read and write memory: nothing may move over them.
    static inline __attribute__((always_inline)) void keep_order(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

    static void configure(int tokens, int k_groups) {
        const TileConfiguration configuration = configuration_of(tokens, k_groups);
        keep_order(&configuration);
        _tile_loadconfig(&configuration);
        keep_order(&configuration);
    }
    static void release() { _tile_release(); }
    template <int set>
    struct Set;
};

// Numbers of tiles are part of the instructions, and compilers want to see them written out.
#define TOKENLOOM_TILE_SET(set, sums, left, right)                                                                   \
    template <>                                                                                                      \
    struct Tiles::Set<set> {                                                                                         \
        static inline __attribute__((always_inline)) void clear_sums() { _tile_zero(sums); }                         \
        static inline __attribute__((always_inline)) void load_left(const void* from, size_t stride) {               \
            keep_order(from);                                                                                        \
            _tile_loadd(left, from, stride);                                                                         \
            keep_order(from);                                                                                        \
        }                                                                                                            \
        static inline __attribute__((always_inline)) void load_right(const void* from, size_t stride) {              \
            keep_order(from);                                                                                        \
            _tile_loadd(right, from, stride);                                                                        \
            keep_order(from);                                                                                        \
        }                                                                                                            \
        static inline __attribute__((always_inline)) void add_products() { _tile_dpbssd(sums, left, right); }        \
        static inline __attribute__((always_inline)) void store_sums(void* to, size_t stride) {                      \
            keep_order(to);                                                                                          \
            _tile_stored(sums, to, stride);                                                                          \
            keep_order(to);                                                                                          \
        }                                                                                                            \
    }

TOKENLOOM_TILE_SET(0, 0, 1, 2);
TOKENLOOM_TILE_SET(1, 3, 4, 5);

#undef TOKENLOOM_TILE_SET

#else

struct Tiles {
    static void configure(int tokens, int k_groups) {
        const TileConfiguration configuration = configuration_of(tokens, k_groups);
        emulated::load_configuration(&configuration);
    }
    static void release() { emulated::release(); }
    template <int set>
    struct Set {
        static constexpr int kSums = 3 * set, kLeft = kSums + 1, kRight = kSums + 2;

        static void clear_sums() { emulated::clear(kSums); }
        static void load_left(const void* from, size_t stride) { emulated::load(kLeft, from, stride); }
        static void load_right(const void* from, size_t stride) { emulated::load(kRight, from, stride); }
        static void add_products() { emulated::add_products(kSums, kLeft, kRight); }
        static void store_sums(void* to, size_t stride) { emulated::store(kSums, to, stride); }
    };
};

#endif

}  // namespace

}  // namespace tokenloom
