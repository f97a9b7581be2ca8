// The memory behind the pages of cells.
//
// A page holds the keys and values of page_size positions in every layer, as float16:
//
//     for each layer, for each KV head:
//         keys    [head_size][page_size]   (transposed, so that one instruction scores many positions)
//         values  [page_size][head_size]
//
// Pages lie in slabs of some MiB. ensure() adds slabs as page numbers grow and trim() gives back those that are no longer
// reached, so memory follows the pages in use. New memory is zero, and what is stored is always finite or NaN of its own
// sequence, so lanes of a page that hold nothing yet may be computed with and masked.
// Not thread-safe, except that different cells may be written by different threads.

#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tokenloom {

class KvPool {
public:
    KvPool(int layers, int kv_heads, int head_size, int page_size);
    ~KvPool();
    KvPool(const KvPool&) = delete;
    KvPool& operator=(const KvPool&) = delete;

    // Bytes of one page of such a model.
    static size_t page_bytes(int layers, int kv_heads, int head_size, int page_size);

    // Memory for pages [0, pages_end). Throws EngineError when the system gives none; pages held before stay valid.
    void ensure(int pages_end);
    // Pages from pages_end on are not in use: give their slabs back, but for one kept to grow into.
    void trim(int pages_end);

    ggml_fp16_t* keys(int page, int layer, int head) {
        return reinterpret_cast<ggml_fp16_t*>(slabs_[page / slab_pages_] + (page % slab_pages_) * page_bytes_) +
               (static_cast<size_t>(layer) * kv_heads_ + head) * 2 * block_;
    }
    ggml_fp16_t* values(int page, int layer, int head) { return keys(page, layer, head) + block_; }

    // Store one position's key and value of all heads of one layer: float32 [kv_heads][head_size] each. Numbers beyond
    // float16's range become its largest.
    void write(int page, int offset, int layer, const float* key, const float* value);
    // Positions [0, positions) of one page to another, in every layer.
    void copy(int from, int to, int positions);

    size_t allocated_bytes() const { return slabs_.size() * slab_bytes_; }

private:
    int layers_;
    int kv_heads_;
    int head_size_;
    int page_size_;
    size_t block_;       // elements of the keys, and of the values, of one page, layer and head
    size_t page_bytes_;
    size_t slab_pages_;
    size_t slab_bytes_;
    std::vector<uint8_t*> slabs_;
};

}  // namespace tokenloom
