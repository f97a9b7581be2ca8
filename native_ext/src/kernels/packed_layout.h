// The layouts that the multiplication kernels read: weights in groups of rows, activations in tiles of tokens.
//
// Weights. A group is 32 rows; a block is 32 numbers along k, cut into eight k-groups of four. One vector of 128 bytes holds
// a k-group of all 32 rows, four bytes a row: byte row*4 + n is number 4*j + n of k-group j. Rounded numbers are stored
// unsigned, an offset added (kFormats), and a block of a group is
//   of 4 bits: four vectors, the i-th with k-group 2*i in the low four bits of its bytes and 2*i + 1 in the high four;
//   of 5 bits: the same of the low four bits, and a vector whose bit j is the fifth of k-group j;
//   of 6 bits: the same, and two vectors of the upper two bits: k-group j's at bits 2*(j%4) of vector j/4;
//   of 8 bits: eight vectors, one a k-group.
// with the rows' scales behind it, float16 [32], and then their minimums where the format has them. In "halves" the first 16
// numbers of a block have one scale, the other 16 another, which takes the place of the minimum.
// Floating-point numbers lie as [k][32 rows], in no blocks. Rows beyond the matrix's last are zero.
// So a matrix is one stream of memory, which kernels read from its beginning to its end; every block starts a cache line.
//
// Activations. A tile holds T tokens, up to kTileTokens.
//   rounded: int8 in -127 .. 127 with a float32 scale for each block of a token. A block is
//     int8 [8 k-groups][T][4], float scale [T], float scale * sum [T],
//     int32 -8 * sum [T], int32 -128 * sum [T], int32 -32 * first sum [T], int32 -32 * second sum [T],
//   where sum is that of the block's int8 numbers, first and second sum those of its halves, exact. The integers are what a
//   sum of products starts from, so that weights stored unsigned count as signed.
//   whole or shortened: float32 [k][T], in no blocks.
//
// The number that every kernel computes for a row and a token, over the blocks b (or all k) in ascending order from acc = 0:
//   rounded: acc = fma(float(start + sum of w * a) * scale_a, scale_w, acc)
//            acc = fma(minimum_w, scale_a * sum_a, acc)              where the format has minimums
//            and for halves the first line once for each
//   else:    acc = fma(w, a, acc)
// The sum of a rounded block is one of integers and exact, so neither the instruction set nor the number of tokens changes
// a bit.
// Plain data and no functions: included where the instruction set differs.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenloom {

// Of the weights' layouts as a whole: another number whenever any of them changes, so that kept files of the old ones are refused.
constexpr uint32_t kPackedLayout = 2;

constexpr int kGroupRows = 32;
constexpr int kVectorBytes = 4 * kGroupRows;
constexpr int kBlock = 32;
constexpr int kTileTokens = 6;
constexpr int kRoundedBytes = 56;  // of a block of rounded activations, for each token

enum class PackedFormat {
    nibbles_centred,
    nibbles_minimum,
    fives_centred,
    fives_minimum,
    sixes_halves,
    bytes,
    float16,
    bfloat16,
    float32,
};
constexpr int kPackedFormats = 9;

struct FormatTraits {
    int bits;    // of a number
    int offset;  // a number is stored + offset
    bool scales;
    bool minimums;
    bool halves;

    constexpr bool second() const { return minimums || halves; }
    // From a block of a group to its scales, and to its second ones.
    constexpr int scales_at() const { return kVectorBytes * bits; }
    constexpr int second_at() const { return scales_at() + 2 * kGroupRows; }
    // Of a group; of floating-point formats one number of each row.
    constexpr int block_bytes() const { return scales ? scales_at() + (second() ? 4 : 2) * kGroupRows : kGroupRows * bits / 8; }
};

constexpr FormatTraits kFormats[kPackedFormats] = {
    {4, 8, true, false, false},   {4, 0, true, true, false},    {5, 16, true, false, false},
    {5, 0, true, true, false},    {6, 32, true, false, true},   {8, 128, true, false, false},
    {16, 0, false, false, false}, {16, 0, false, false, false}, {32, 0, false, false, false},
};

struct PackedGroup {
    const uint8_t* data;
    int blocks;  // or numbers along k where there are no blocks
};

}  // namespace tokenloom
