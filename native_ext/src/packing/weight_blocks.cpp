#include "packing/weight_blocks.h"

#include <cstring>

namespace tokenloom {

namespace {

ggml_fp16_t half_at(const uint8_t* p) {
    ggml_fp16_t half;
    std::memcpy(&half, p, sizeof(half));
    return half;
}

// 16 bytes: numbers 0 to 15 in the low nibbles, 16 to 31 in the high ones.
void nibbles(const uint8_t* bytes, int offset, int8_t* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<int8_t>((bytes[i] & 15) - offset);
        out[16 + i] = static_cast<int8_t>((bytes[i] >> 4) - offset);
    }
}

// A fifth bit for each, number i's at bit i.
void fifth_bits(const uint8_t* bytes, int8_t* out) {
    for (int i = 0; i < 32; ++i) {
        out[i] = static_cast<int8_t>(out[i] + (((bytes[i / 8] >> (i % 8)) & 1) << 4));
    }
}

ggml_fp16_t scaled(ggml_fp16_t scale, int factor) {
    return ggml_fp32_to_fp16(ggml_fp16_to_fp32(scale) * static_cast<float>(factor));
}

// The head that Q4_K and Q5_K share, of 256 numbers: float16 scale and scale of minimums, then 12 bytes of eight 6-bit
// pairs (scale, minimum). `j` is the block.
void read_k_head(const uint8_t* super, int j, WeightBlock& out) {
    const uint8_t* packed = super + 4;
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    const int minimum = j < 4 ? packed[j + 4] & 63 : (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
    out.scale = scaled(half_at(super), scale);
    out.second = scaled(half_at(super + 2), -minimum);
}

// 32 bytes of nibbles hold two blocks, the first in the low ones.
void read_k_nibbles(const uint8_t* quants, int j, WeightBlock& out) {
    const uint8_t* bytes = quants + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
        out.quants[i] = static_cast<int8_t>(j % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4);
    }
}

// The head, 128 bytes of nibbles.
void read_q4_k(const uint8_t* super, int j, WeightBlock& out) {
    read_k_head(super, j, out);
    read_k_nibbles(super + 16, j, out);
}

// The head, 32 bytes whose bit j is the fifth of block j's numbers, 128 bytes of nibbles.
void read_q5_k(const uint8_t* super, int j, WeightBlock& out) {
    read_k_head(super, j, out);
    read_k_nibbles(super + 48, j, out);
    for (int i = 0; i < 32; ++i) {
        out.quants[i] = static_cast<int8_t>(out.quants[i] | ((super[16 + i] >> j & 1) << 4));
    }
}

// 128 bytes of low nibbles, 64 bytes of the upper two bits, 16 int8 scales for 16 numbers each, float16 scale. Of 128 numbers
// (64 and 32 of these bytes), block 0 and 1 are low nibbles of the first and second 32 bytes, 2 and 3 the high ones, and
// block n has its upper bits at 2 * n.
void read_q6_k(const uint8_t* super, int j, WeightBlock& out) {
    const int part = j / 4;
    const int n = j % 4;
    const uint8_t* low = super + 64 * part + 32 * (n % 2);
    const uint8_t* high = super + 128 + 32 * part;
    for (int i = 0; i < 32; ++i) {
        const int nibble = n < 2 ? low[i] & 15 : low[i] >> 4;
        out.quants[i] = static_cast<int8_t>((nibble | ((high[i] >> (2 * n) & 3) << 4)) - 32);
    }
    const auto* scales = reinterpret_cast<const int8_t*>(super + 192);
    out.scale = scaled(half_at(super + 208), scales[2 * j]);
    out.second = scaled(half_at(super + 208), scales[2 * j + 1]);
}

}  // namespace

void read_block(ggml_type type, const uint8_t* row, int64_t block, WeightBlock& out) {
    out.second = 0;
    switch (type) {
        case GGML_TYPE_Q4_0:
            row += block * 18;
            out.scale = half_at(row);
            nibbles(row + 2, 8, out.quants);
            break;
        case GGML_TYPE_Q4_1:
            row += block * 20;
            out.scale = half_at(row);
            out.second = half_at(row + 2);
            nibbles(row + 4, 0, out.quants);
            break;
        case GGML_TYPE_Q5_0:
            row += block * 22;
            out.scale = half_at(row);
            nibbles(row + 6, 16, out.quants);
            fifth_bits(row + 2, out.quants);
            break;
        case GGML_TYPE_Q5_1:
            row += block * 24;
            out.scale = half_at(row);
            out.second = half_at(row + 2);
            nibbles(row + 8, 0, out.quants);
            fifth_bits(row + 4, out.quants);
            break;
        case GGML_TYPE_Q8_0:
            row += block * 34;
            out.scale = half_at(row);
            std::memcpy(out.quants, row + 2, 32);
            break;
        case GGML_TYPE_Q4_K:
            read_q4_k(row + block / 8 * 144, static_cast<int>(block % 8), out);
            break;
        case GGML_TYPE_Q5_K:
            read_q5_k(row + block / 8 * 176, static_cast<int>(block % 8), out);
            break;
        case GGML_TYPE_Q6_K:
            read_q6_k(row + block / 8 * 210, static_cast<int>(block % 8), out);
            break;
        default:
            GGML_ABORT("a weight type that cannot be packed");
    }
}

}  // namespace tokenloom
