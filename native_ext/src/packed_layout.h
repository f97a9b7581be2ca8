// The layouts that the multiplication kernels read: weights in groups of rows, activations in tiles of tokens.
//
// Weights. A group is 16 rows; a block is 32 numbers along k, cut into eight k-groups of four. One 64-byte vector holds a
// k-group of all 16 rows, four bytes a row.
//   nibbles: 256 bytes a block. Byte i*64 + row*4 + n holds number 4*i + n in its low four bits and number 4*(i+4) + n in
//            its high four, both unsigned.
//   bytes:   512 bytes a block. Byte j*64 + row*4 + n holds number 4*j + n, stored unsigned: q xor 0x80 of the signed q.
//   halves:  512 bytes a block, placed like bytes, unsigned: q + 32 of a q from -32 to 31. The first 16 numbers of a block have
//            one scale, the other 16 another, which takes the place of the minimum.
// Scales, and minimums where the format has them, are float16 [groups][blocks][16] in streams of their own. Rows beyond
// the matrix's last are zero.
//
// Activations. Each block of 32 of a token's numbers is rounded to int8 in -127 .. 127 with a float32 scale. A tile holds up
// to 16 tokens (T), and for each block, 56 * T bytes:
//   int8 [8 k-groups][T][4], float scale [T], float scale * sum [T],
//   int32 -8 * sum [T], int32 -128 * sum [T], int32 -32 * first sum [T], int32 -32 * second sum [T],
// where sum is that of the block's int8 numbers, first and second sum those of its halves, exact. The integers are what a
// sum of products starts from, so that weights stored unsigned count as signed.
//
// The number that every kernel computes for a row and a token, over the blocks b in ascending order from acc = 0:
//   acc = fma(float(start + sum of w * a), scale_w * scale_a, acc)
//   acc = fma(minimum_w, scale_a * sum_a, acc)                        where the format has minimums
// and for halves the first line once for each.
// The inner sum is one of integers and exact, so neither the instruction set nor the number of tokens changes a bit.
// Plain data and no functions: included where the instruction set differs.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenloom {

constexpr int kGroupRows = 16;
constexpr int kBlock = 32;
constexpr int kTileTokens = 16;
constexpr int kTileBytes = 56;  // of a block, for each token

enum class PackedFormat {
    nibbles_centred,  // nibble - 8, times scale
    nibbles_minimum,  // nibble times scale, plus minimum
    bytes,            // signed byte times scale
    bytes_minimum,    // signed byte times scale, plus minimum
    bytes_halves,     // number from -32 to 31 times its half's scale
};
constexpr int kPackedFormats = 5;

// One group of rows.
struct PackedGroup {
    const uint8_t* quants;
    const uint16_t* scales;
    const uint16_t* minimums;  // or the second halves' scales; null where the format has neither
    int blocks;
};

}  // namespace tokenloom
