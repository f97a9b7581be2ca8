// A weight matrix in the layout of the multiplication kernels (packed_layout.h), made once from a GGUF tensor's bytes.
//
// Which types can be packed, how exactly, and in how many bytes (a block of 32 numbers, the file's in brackets):
//   Q4_0 18 (18), Q4_1 20 (20), Q5_0 22 (22), Q5_1 24 (24), Q8_0 34 (34)    the same numbers, no rounding
//   Q4_K 20 (18), Q5_K 24 (22), Q6_K 28 (26.25)    the same quants; the products of scales are rounded to float16
//   F16, BF16, F32    the same numbers

#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/activations.h"
#include "kernels/packed_layout.h"

namespace tokenloom {

class PackedMatrix {
public:
    static bool can_pack(ggml_type type);
    // What a matrix of a type that can be packed will take.
    static size_t bytes_of(ggml_type type, int64_t rows, int64_t columns);

    // `data`: `rows` rows of `columns` numbers of the type, as GGUF stores them. can_pack(type) must hold, and `columns`
    // be a multiple of the type's block. `place`: bytes_of() bytes of anything at a multiple of 64, which must live as
    // long; null for memory of its own. Throws std::bad_alloc.
    PackedMatrix(ggml_type type, const uint8_t* data, int64_t rows, int64_t columns, uint8_t* place = nullptr);
    // The same around bytes that another one of this type and size had (data()), at a multiple of 64; they must live as long.
    PackedMatrix(ggml_type type, int64_t rows, int64_t columns, const uint8_t* packed);

    PackedFormat format() const { return format_; }
    // How activations must be to be multiplied with it.
    ActivationForm form() const {
        return traits().scales ? ActivationForm::rounded
               : format_ == PackedFormat::float16 ? ActivationForm::shortened
                                                  : ActivationForm::whole;
    }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int groups() const { return groups_; }
    PackedGroup group(int index) const;
    size_t group_bytes() const { return static_cast<size_t>(blocks()) * traits().block_bytes(); }
    // float32 [columns]; 0 <= row < rows.
    void read_row(int64_t row, float* out) const;
    const uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_of(type_, rows_, columns_); }

private:
    struct Free {
        bool own;
        void operator()(uint8_t* bytes) const {
            if (own) {
                ::operator delete(bytes, std::align_val_t{64});
            }
        }
    };

    const FormatTraits& traits() const { return kFormats[static_cast<int>(format_)]; }
    int blocks() const { return static_cast<int>(traits().scales ? columns_ / kBlock : columns_); }  // of a row
    void pack_row(const uint8_t* source, int64_t row);
    void pack_whole(const uint8_t* data, int group);

    ggml_type type_;
    PackedFormat format_;
    int64_t rows_;
    int64_t columns_;
    int groups_;
    std::unique_ptr<uint8_t, Free> storage_;  // what may be written: null around bytes of before
    const uint8_t* data_;
};

}  // namespace tokenloom
