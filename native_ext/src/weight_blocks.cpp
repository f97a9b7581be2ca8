#include "weight_blocks.h"

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

// 256 numbers: float16 scale and scale of minimums, 12 bytes of eight 6-bit pairs (scale, minimum), 128 bytes of nibbles
// where 32 bytes hold two blocks, the first in the low nibbles.
void read_q4_k(const uint8_t* row, int64_t block, WeightBlock& out) {
    const uint8_t* super = row + block / 8 * 144;
    const int j = static_cast<int>(block % 8);
    const uint8_t* packed = super + 4;
    const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4);
    const int minimum = j < 4 ? packed[j + 4] & 63 : (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
    out.scale = ggml_fp32_to_fp16(ggml_fp16_to_fp32(half_at(super)) * static_cast<float>(scale));
    out.minimum = ggml_fp32_to_fp16(-ggml_fp16_to_fp32(half_at(super + 2)) * static_cast<float>(minimum));
    const uint8_t* bytes = super + 16 + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
        out.quants[i] = static_cast<int8_t>(j % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4);
    }
}

}  // namespace

void read_block(ggml_type type, const uint8_t* row, int64_t block, WeightBlock& out) {
    out.minimum = 0;
    switch (type) {
        case GGML_TYPE_Q4_0:
            row += block * 18;
            out.scale = half_at(row);
            nibbles(row + 2, 8, out.quants);
            break;
        case GGML_TYPE_Q4_1:
            row += block * 20;
            out.scale = half_at(row);
            out.minimum = half_at(row + 2);
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
            out.minimum = half_at(row + 2);
            nibbles(row + 8, 0, out.quants);
            fifth_bits(row + 4, out.quants);
            break;
        case GGML_TYPE_Q8_0:
            row += block * 34;
            out.scale = half_at(row);
            std::memcpy(out.quants, row + 2, 32);
            break;
        case GGML_TYPE_Q4_K:
            read_q4_k(row, block, out);
            break;
        default:
            GGML_ABORT("a weight type that cannot be packed");
    }
}

}  // namespace tokenloom
