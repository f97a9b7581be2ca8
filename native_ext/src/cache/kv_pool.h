// The memory behind the pages of cells.
//
// A page holds the keys and values of kPageSize positions in every layer that has cells:
//
//     for each layer, for each KV head:
//         keys          [key_size][kPageSize]    (transposed, so that one instruction scores many positions)
//         values        [kPageSize][value_size]
//         key scales    [kPageSize]              of int8 only
//         value scales  [kPageSize]
//
// as float16; or as int8 from -127 to 127 with a float16 scale for each position, head, and of key and value. A cell's
// bytes follow from its own key and value alone, so it may be written in any order, and again.
//
// Pages lie in slabs of some MiB. ensure() adds slabs as page numbers grow and trim() gives back those that are no longer
// reached, so memory follows the pages in use. New memory is zero, and what is stored is always finite or NaN of its own
// sequence, so lanes of a page that hold nothing yet may be computed with and masked.
// Not thread-safe, except that different cells may be written by different threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "system/huge_memory.h"
#include "cache/page_format.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

// Of the cells of one layer.
struct CellShape {
    int kv_heads;
    int key_size;
    int value_size;
};

// One head's keys and values of some positions: float32 [key_size] and [value_size], a row every so many floats.
struct HeadRows {
    int positions;
    const float* keys;
    size_t key_stride;
    const float* values;
    size_t value_stride;
};

class KvPool {
public:
    // `layers`: those that have cells.
    KvPool(std::span<const CellShape> layers, KvType type);
    KvPool(const KvPool&) = delete;
    KvPool& operator=(const KvPool&) = delete;

    // Bytes of one page of such a model.
    static size_t page_bytes(std::span<const CellShape> layers, KvType type);

    KvType type() const { return type_; }

    // Memory for pages [0, pages_end). Throws EngineError when the system gives none; pages held before stay valid.
    void ensure(int pages_end);
    // Pages from pages_end on are not in use: give their slabs back, but for one kept to grow into.
    void trim(int pages_end);

    PageView view(int page, int layer, int head) const {
        const uint8_t* keys = block(page, layer, head);
        const Place& place = layers_[static_cast<size_t>(layer)];
        const uint8_t* values = keys + place.key_bytes;
        if (type_ == KvType::f16) {
            return {keys, values, nullptr, nullptr};
        }
        const auto* scales = reinterpret_cast<const uint16_t*>(values + place.value_bytes);
        return {keys, values, scales, scales + kPageSize};
    }

    // Store keys and values of one head of one layer, of positions of a page that follow each other. Numbers beyond float16's
    // range become its largest.
    void write(const RowKernels& kernels, int page, int offset, int layer, int head, const HeadRows& rows);
    // Of one position.
    void write(const RowKernels& kernels, int page, int offset, int layer, int head, const float* key, const float* value) {
        write(kernels, page, offset, layer, head, {1, key, 0, value, 0});
    }
    // Positions [0, positions) of one page to another, in every layer.
    void copy(int from, int to, int positions);

    size_t allocated_bytes() const { return slabs_.size() * slab_bytes_; }

private:
    uint8_t* block(int page, int layer, int head) const {
        const Place& place = layers_[static_cast<size_t>(layer)];
        return slabs_[static_cast<size_t>(page) / slab_pages_].data() + (static_cast<size_t>(page) % slab_pages_) * page_bytes_ +
               place.offset + static_cast<size_t>(head) * place.block_bytes;
    }

    // A layer's part of a page.
    struct Place {
        CellShape shape;
        size_t offset;
        size_t key_bytes;    // of one head's numbers, without scales
        size_t value_bytes;  // likewise
        size_t block_bytes;  // of one head
    };
    static std::vector<Place> places_of(std::span<const CellShape> layers, KvType type);

    std::vector<Place> layers_;
    KvType type_;
    size_t page_bytes_;
    size_t slab_pages_;
    size_t slab_bytes_;
    std::vector<HugeMemory> slabs_;
};

}  // namespace tokenloom
