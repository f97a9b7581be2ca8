// A weight matrix in the layout of the multiplication kernels (packed_layout.h), made once from a GGUF tensor's bytes.
//
// Which types can be packed, and how exactly:
//   Q4_0, Q4_1, Q8_0       the same numbers, no rounding
//   Q5_0, Q5_1             the same numbers, in bytes (34 or 36 bytes a block in place of 22 or 24)
//   Q4_K, Q5_K, Q6_K       the same quants; the products of scales are rounded to float16 (20, 36 and 36 bytes a block for
//                          18, 22 and 26)

#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "packed_layout.h"

namespace tokenloom {

class PackedMatrix {
public:
    static bool can_pack(ggml_type type);
    // What a matrix of a type that can be packed will take.
    static size_t bytes_of(ggml_type type, int64_t rows, int64_t columns);

    // `data`: `rows` rows of `columns` numbers of the type, as GGUF stores them. can_pack(type) must hold, and `columns`
    // be a multiple of the type's block. Throws std::bad_alloc.
    PackedMatrix(ggml_type type, const uint8_t* data, int64_t rows, int64_t columns);

    PackedFormat format() const { return format_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int groups() const { return groups_; }
    int blocks() const { return static_cast<int>(columns_ / kBlock); }  // of a row
    PackedGroup group(int index) const;
    // float32 [columns]; 0 <= row < rows.
    void read_row(int64_t row, float* out) const;
    size_t bytes() const { return quant_bytes_ + (has_second() ? 2 : 1) * scale_bytes_; }

private:
    struct Free {
        void operator()(uint8_t* bytes) const { ::operator delete(bytes, std::align_val_t{64}); }
    };

    // A minimum, or another scale.
    bool has_second() const { return format_ != PackedFormat::nibbles_centred && format_ != PackedFormat::bytes; }
    bool is_nibbles() const { return format_ == PackedFormat::nibbles_centred || format_ == PackedFormat::nibbles_minimum; }
    size_t block_bytes() const { return is_nibbles() ? 256 : 512; }  // of a group
    void pack_row(const uint8_t* source, int64_t row);

    ggml_type type_;
    PackedFormat format_;
    int64_t rows_;
    int64_t columns_;
    int groups_;
    size_t quant_bytes_;
    size_t scale_bytes_;
    std::unique_ptr<uint8_t, Free> storage_;  // quants, scales, minimums
};

}  // namespace tokenloom
