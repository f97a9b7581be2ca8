// The memory behind the pages of cells.
//
// A page holds the keys and values of kPageSize positions in every layer:
//
//     for each layer, for each KV head:
//         keys          [head_size][kPageSize]   (transposed, so that one instruction scores many positions)
//         values        [kPageSize][head_size]
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
#include <vector>

#include "system/huge_memory.h"
#include "cache/page_format.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

// One head's keys and values of some positions: float32 [head_size] each, a row every so many floats.
struct HeadRows {
    int positions;
    const float* keys;
    size_t key_stride;
    const float* values;
    size_t value_stride;
};

class KvPool {
public:
    KvPool(int layers, int kv_heads, int head_size, KvType type);
    KvPool(const KvPool&) = delete;
    KvPool& operator=(const KvPool&) = delete;

    // Bytes of one page of such a model.
    static size_t page_bytes(int layers, int kv_heads, int head_size, KvType type);

    KvType type() const { return type_; }

    // Memory for pages [0, pages_end). Throws EngineError when the system gives none; pages held before stay valid.
    void ensure(int pages_end);
    // Pages from pages_end on are not in use: give their slabs back, but for one kept to grow into.
    void trim(int pages_end);

    PageView view(int page, int layer, int head) const {
        const uint8_t* keys = block(page, layer, head);
        const uint8_t* values = keys + numbers_;
        if (type_ == KvType::f16) {
            return {keys, values, nullptr, nullptr};
        }
        const auto* scales = reinterpret_cast<const uint16_t*>(values + numbers_);
        return {keys, values, scales, scales + kPageSize};
    }

    // Store keys and values of one head of one layer, of positions of a page that follow each other. Numbers beyond float16's
    // range become its largest.
    void write(const RowKernels& kernels, int page, int offset, int layer, int head, const HeadRows& rows);
    // Of one position, float32 [head_size] each.
    void write(const RowKernels& kernels, int page, int offset, int layer, int head, const float* key, const float* value) {
        write(kernels, page, offset, layer, head, {1, key, 0, value, 0});
    }
    // Positions [0, positions) of one page to another, in every layer.
    void copy(int from, int to, int positions);

    size_t allocated_bytes() const { return slabs_.size() * slab_bytes_; }

private:
    uint8_t* block(int page, int layer, int head) const {
        return slabs_[static_cast<size_t>(page) / slab_pages_].data() + (static_cast<size_t>(page) % slab_pages_) * page_bytes_ +
               (static_cast<size_t>(layer) * kv_heads_ + head) * block_bytes_;
    }

    int layers_;
    int kv_heads_;
    int head_size_;
    KvType type_;
    size_t numbers_;      // bytes of the keys' numbers, and of the values', of one page, layer and head
    size_t block_bytes_;  // of all of one page, layer and head
    size_t page_bytes_;
    size_t slab_pages_;
    size_t slab_bytes_;
    std::vector<HugeMemory> slabs_;
};

}  // namespace tokenloom
