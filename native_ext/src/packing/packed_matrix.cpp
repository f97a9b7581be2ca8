#include "packing/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "packing/weight_blocks.h"

namespace tokenloom {

namespace {

std::optional<PackedFormat> format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return PackedFormat::nibbles_centred;
        case GGML_TYPE_Q4_1: return PackedFormat::nibbles_minimum;
        case GGML_TYPE_Q4_K: return PackedFormat::nibbles_minimum;
        case GGML_TYPE_Q5_0: return PackedFormat::fives_centred;
        case GGML_TYPE_Q5_1: return PackedFormat::fives_minimum;
        case GGML_TYPE_Q5_K: return PackedFormat::fives_minimum;
        case GGML_TYPE_Q6_K: return PackedFormat::sixes_halves;
        case GGML_TYPE_Q8_0: return PackedFormat::bytes;
        case GGML_TYPE_F16: return PackedFormat::float16;
        case GGML_TYPE_BF16: return PackedFormat::bfloat16;
        case GGML_TYPE_F32: return PackedFormat::float32;
        default: return std::nullopt;
    }
}

int64_t groups_of(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows; }

// A row's numbers to its place in a block of a group, whose first byte of the row is `quants`.
void store_block(const uint8_t (&stored)[kBlock], int bits, uint8_t* quants) {
    uint8_t vectors[8][4] = {};
    for (int n = 0; n < 4; ++n) {
        for (int j = 0; j < 8; ++j) {  // k-groups
            const int q = stored[4 * j + n];
            const auto put = [&](int vector, int value) { vectors[vector][n] = static_cast<uint8_t>(vectors[vector][n] | value); };
            if (bits == 8) {
                put(j, q);
                continue;
            }
            put(j / 2, (q & 15) << (j % 2 * 4));
            if (bits == 5) {
                put(4, (q >> 4) << j);
            } else if (bits == 6) {
                put(4 + j / 4, (q >> 4) << (j % 4 * 2));
            }
        }
    }
    for (int vector = 0; vector < bits; ++vector) {  // as many as there are bits
        std::memcpy(quants + kVectorBytes * vector, vectors[vector], 4);
    }
}

// The reverse.
void read_stored(const uint8_t* quants, int bits, uint8_t (&stored)[kBlock]) {
    for (int k = 0; k < kBlock; ++k) {
        const int j = k / 4;
        const int n = k % 4;
        if (bits == 8) {
            stored[k] = quants[kVectorBytes * j + n];
            continue;
        }
        int q = quants[kVectorBytes * (j / 2) + n] >> (j % 2 * 4) & 15;
        if (bits == 5) {
            q |= (quants[kVectorBytes * 4 + n] >> j & 1) << 4;
        } else if (bits == 6) {
            q |= (quants[kVectorBytes * (4 + j / 4) + n] >> (j % 4 * 2) & 3) << 4;
        }
        stored[k] = static_cast<uint8_t>(q);
    }
}

}  // namespace

bool PackedMatrix::can_pack(ggml_type type) {
    return format_of(type).has_value();
}

size_t PackedMatrix::bytes_of(ggml_type type, int64_t rows, int64_t columns) {
    const FormatTraits& traits = kFormats[static_cast<int>(*format_of(type))];
    return static_cast<size_t>(groups_of(rows)) * static_cast<size_t>(traits.scales ? columns / kBlock : columns) * traits.block_bytes();
}

PackedMatrix::PackedMatrix(ggml_type type, int64_t rows, int64_t columns, const uint8_t* packed)
    : type_(type),
      format_(*format_of(type)),
      rows_(rows),
      columns_(columns),
      groups_(static_cast<int>(groups_of(rows))),
      storage_(nullptr, Free{false}),
      data_(packed) {}

PackedMatrix::PackedMatrix(ggml_type type, const uint8_t* data, int64_t rows, int64_t columns, uint8_t* place)
    : PackedMatrix(type, rows, columns, nullptr) {
    uint8_t* own = place == nullptr ? static_cast<uint8_t*>(::operator new(bytes(), std::align_val_t{64})) : nullptr;
    storage_ = {own == nullptr ? place : own, Free{own != nullptr}};
    data_ = storage_.get();
    if (!traits().scales) {
        for (int g = 0; g < groups_; ++g) {
            pack_whole(data, g);
        }
        return;
    }
    if (rows % kGroupRows != 0) {  // rows that nothing fills
        std::memset(storage_.get() + (groups_ - 1) * group_bytes(), 0, group_bytes());
    }
    const size_t row_bytes = ggml_row_size(type, columns);
    for (int64_t row = 0; row < rows; ++row) {
        pack_row(data + static_cast<size_t>(row) * row_bytes, row);
    }
}

PackedGroup PackedMatrix::group(int index) const {
    return {data_ + static_cast<size_t>(index) * group_bytes(), blocks()};
}

void PackedMatrix::read_row(int64_t row, float* out) const {
    const auto lane = static_cast<size_t>(row % kGroupRows);
    const PackedGroup g = group(static_cast<int>(row / kGroupRows));
    if (!traits().scales) {
        const size_t size = traits().bits / 8;
        const uint8_t* number = g.data + lane * size;
        for (int64_t k = 0; k < columns_; ++k, number += kGroupRows * size) {
            if (format_ == PackedFormat::float32) {
                std::memcpy(out + k, number, sizeof(float));
            } else if (format_ == PackedFormat::float16) {
                out[k] = ggml_fp16_to_fp32(*reinterpret_cast<const ggml_fp16_t*>(number));
            } else {
                out[k] = ggml_bf16_to_fp32(*reinterpret_cast<const ggml_bf16_t*>(number));
            }
        }
        return;
    }
    const uint8_t* block = g.data;
    for (int b = 0; b < blocks(); ++b, block += traits().block_bytes()) {
        const auto half = [&](int at) { return ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t*>(block + at)[lane]); };
        const float scale = half(traits().scales_at());
        const float second = traits().second() ? half(traits().second_at()) : 0.0f;
        uint8_t stored[kBlock];
        read_stored(block + 4 * lane, traits().bits, stored);
        for (int k = 0; k < kBlock; ++k) {
            const auto q = static_cast<float>(stored[k] - traits().offset);
            *out++ = traits().halves ? (k < kBlock / 2 ? scale : second) * q : scale * q + second;
        }
    }
}

void PackedMatrix::pack_row(const uint8_t* source, int64_t row) {
    const auto lane = static_cast<size_t>(row % kGroupRows);
    uint8_t* out = storage_.get() + static_cast<size_t>(row / kGroupRows) * group_bytes();
    WeightBlock block;
    for (int b = 0; b < blocks(); ++b, out += traits().block_bytes()) {
        read_block(type_, source, b, block);
        uint8_t stored[kBlock];
        for (int k = 0; k < kBlock; ++k) {
            stored[k] = static_cast<uint8_t>(block.quants[k] + traits().offset);
        }
        store_block(stored, traits().bits, out + 4 * lane);
        reinterpret_cast<uint16_t*>(out + traits().scales_at())[lane] = block.scale;
        if (traits().second()) {
            reinterpret_cast<uint16_t*>(out + traits().second_at())[lane] = block.second;
        }
    }
}

void PackedMatrix::pack_whole(const uint8_t* data, int group) {
    const size_t size = traits().bits / 8;
    const size_t row_bytes = static_cast<size_t>(columns_) * size;
    const int64_t first = int64_t{group} * kGroupRows;
    const auto lanes = static_cast<int>(std::min<int64_t>(kGroupRows, rows_ - first));
    const uint8_t* source = data + static_cast<size_t>(first) * row_bytes;
    uint8_t* out = storage_.get() + static_cast<size_t>(group) * group_bytes();
    for (int64_t k = 0; k < columns_; ++k, source += size, out += kGroupRows * size) {
        for (int lane = 0; lane < lanes; ++lane) {
            std::memcpy(out + lane * size, source + lane * row_bytes, size);
        }
        std::memset(out + lanes * size, 0, (kGroupRows - lanes) * size);
    }
}

}  // namespace tokenloom
