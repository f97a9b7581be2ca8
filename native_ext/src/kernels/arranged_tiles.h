// A thread's memory for tiles arranged for products of many tokens (ManyTokens of kernel_table.h), and what is arranged in it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "kernels/activations.h"
#include "kernels/kernel_table.h"

namespace tokenloom {

class ArrangedTiles {
public:
    // Room for so many bytes; what is in it is lost when it grows. Throws std::bad_alloc.
    void reserve(size_t bytes) {
        if (bytes > size_) {
            room_.reset();
            room_.reset(new (std::align_val_t{64}) uint8_t[bytes]);
            size_ = bytes;
        }
    }

    // Tiles `first` to `last` - 1 of `rows` tokens of `blocks` blocks; null when there is no room for them.
    const uint8_t* arrange(const ManyTokens& many, const uint8_t* tiles, int rows, int first, int last, int blocks) {
        const int begin = tile_first_row(rows, first);
        const int tokens = tile_first_row(rows, last) - begin;
        if (many.bytes(tokens, blocks) > size_) {
            return nullptr;
        }
        for (int tile = first; tile < last; ++tile) {
            const int row = tile_first_row(rows, tile);
            many.arrange(tiles + activation_bytes(ActivationForm::rounded, row, int64_t{blocks} * kBlock),
                         tile_first_row(rows, tile + 1) - row, row - begin, tokens, blocks, room_.get());
        }
        return room_.get();
    }

private:
    struct Free {
        void operator()(uint8_t* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
    };
    std::unique_ptr<uint8_t, Free> room_;
    size_t size_ = 0;
};

}  // namespace tokenloom
