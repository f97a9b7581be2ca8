#include "packed_matrix.h"

#include <cstring>
#include <new>
#include <optional>

#include "weight_blocks.h"

namespace tokenloom {

namespace {

std::optional<PackedFormat> format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return PackedFormat::nibbles_centred;
        case GGML_TYPE_Q4_1: return PackedFormat::nibbles_minimum;
        case GGML_TYPE_Q4_K: return PackedFormat::nibbles_minimum;
        case GGML_TYPE_Q5_0: return PackedFormat::bytes;
        case GGML_TYPE_Q8_0: return PackedFormat::bytes;
        case GGML_TYPE_Q5_1: return PackedFormat::bytes_minimum;
        case GGML_TYPE_Q5_K: return PackedFormat::bytes_minimum;
        case GGML_TYPE_Q6_K: return PackedFormat::bytes_halves;
        default: return std::nullopt;
    }
}

// What is added to a number to store it unsigned.
int offset_of(PackedFormat format) {
    switch (format) {
        case PackedFormat::nibbles_centred: return 8;
        case PackedFormat::nibbles_minimum: return 0;
        case PackedFormat::bytes_halves: return 32;
        default: return 128;
    }
}

}  // namespace

bool PackedMatrix::can_pack(ggml_type type) {
    return format_of(type).has_value();
}

size_t PackedMatrix::bytes_of(ggml_type type, int64_t rows, int64_t columns) {
    const PackedFormat format = *format_of(type);
    const bool nibbles = format == PackedFormat::nibbles_centred || format == PackedFormat::nibbles_minimum;
    const bool second = format != PackedFormat::nibbles_centred && format != PackedFormat::bytes;
    const size_t block = (nibbles ? 256 : 512) + (second ? 2 : 1) * kGroupRows * sizeof(ggml_fp16_t);
    return static_cast<size_t>((rows + kGroupRows - 1) / kGroupRows) * static_cast<size_t>(columns / kBlock) * block;
}

PackedMatrix::PackedMatrix(ggml_type type, const uint8_t* data, int64_t rows, int64_t columns)
    : type_(type),
      format_(*format_of(type)),
      rows_(rows),
      columns_(columns),
      groups_(static_cast<int>((rows + kGroupRows - 1) / kGroupRows)),
      quant_bytes_(static_cast<size_t>(groups_) * blocks() * block_bytes()),
      scale_bytes_(static_cast<size_t>(groups_) * blocks() * kGroupRows * sizeof(ggml_fp16_t)),
      storage_(static_cast<uint8_t*>(::operator new(bytes(), std::align_val_t{64}))) {
    if (rows % kGroupRows != 0) {  // rows that nothing fills
        const size_t last = static_cast<size_t>(groups_ - 1) * blocks();
        std::memset(storage_.get() + last * block_bytes(), 0, blocks() * block_bytes());
        std::memset(storage_.get() + quant_bytes_, 0, bytes() - quant_bytes_);
    }
    const size_t row_bytes = ggml_row_size(type, columns);
    for (int64_t row = 0; row < rows; ++row) {
        pack_row(data + static_cast<size_t>(row) * row_bytes, row);
    }
}

PackedGroup PackedMatrix::group(int index) const {
    const size_t first = static_cast<size_t>(index) * blocks();
    const auto* scales = reinterpret_cast<const uint16_t*>(storage_.get() + quant_bytes_);
    const auto* minimums = reinterpret_cast<const uint16_t*>(storage_.get() + quant_bytes_ + scale_bytes_);
    return {storage_.get() + first * block_bytes(), scales + first * kGroupRows,
            has_second() ? minimums + first * kGroupRows : nullptr, blocks()};
}

void PackedMatrix::read_row(int64_t row, float* out) const {
    const auto lane = static_cast<size_t>(row % kGroupRows);
    const PackedGroup g = group(static_cast<int>(row / kGroupRows));
    const int offset = offset_of(format_);
    const uint8_t* quants = g.quants + 4 * lane;
    for (int b = 0; b < blocks(); ++b, quants += block_bytes()) {
        const size_t at = static_cast<size_t>(b) * kGroupRows + lane;
        const float scale = ggml_fp16_to_fp32(g.scales[at]);
        const float second = has_second() ? ggml_fp16_to_fp32(g.minimums[at]) : 0.0f;
        const bool halves = format_ == PackedFormat::bytes_halves;
        for (int k = 0; k < kBlock; ++k) {
            const int half = is_nibbles() ? k % 16 : k;
            const int byte = quants[half / 4 * 64 + half % 4];
            const int q = (is_nibbles() ? (k < 16 ? byte & 15 : byte >> 4) : byte) - offset;
            *out++ = (halves && k >= 16 ? second : scale) * static_cast<float>(q) + (halves ? 0.0f : second);
        }
    }
}

void PackedMatrix::pack_row(const uint8_t* source, int64_t row) {
    const int lane = static_cast<int>(row % kGroupRows);
    const size_t first = static_cast<size_t>(row / kGroupRows) * blocks();
    uint8_t* quants = storage_.get() + first * block_bytes() + 4 * lane;
    auto* scales = reinterpret_cast<ggml_fp16_t*>(storage_.get() + quant_bytes_) + first * kGroupRows + lane;
    auto* minimums = reinterpret_cast<ggml_fp16_t*>(storage_.get() + quant_bytes_ + scale_bytes_) + first * kGroupRows + lane;
    const int offset = offset_of(format_);
    WeightBlock block;
    for (int b = 0; b < blocks(); ++b, quants += block_bytes()) {
        read_block(type_, source, b, block);
        uint8_t stored[kBlock];
        for (int k = 0; k < kBlock; ++k) {
            stored[k] = static_cast<uint8_t>(block.quants[k] + offset);
        }
        if (is_nibbles()) {
            for (int k = 0; k < kBlock / 2; ++k) {
                stored[k] = static_cast<uint8_t>(stored[k] | stored[k + kBlock / 2] << 4);
            }
        }
        for (size_t j = 0; j < block_bytes() / 64; ++j) {
            std::memcpy(quants + j * 64, stored + 4 * j, 4);
        }
        scales[static_cast<size_t>(b) * kGroupRows] = block.scale;
        if (has_second()) {
            minimums[static_cast<size_t>(b) * kGroupRows] = block.second;
        }
    }
}

}  // namespace tokenloom
