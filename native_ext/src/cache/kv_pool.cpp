#include "cache/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "system/errors.h"

namespace tokenloom {

namespace {

constexpr size_t kSlabTarget = size_t{16} << 20;

size_t bytes_of_number(KvType type) { return type == KvType::f16 ? sizeof(uint16_t) : sizeof(int8_t); }

}  // namespace

size_t KvPool::page_bytes(int layers, int kv_heads, int head_size, KvType type) {
    const size_t scales = type == KvType::f16 ? 0 : 2 * sizeof(uint16_t);
    return static_cast<size_t>(layers) * kv_heads * kPageSize * (2 * bytes_of_number(type) * head_size + scales);
}

KvPool::KvPool(int layers, int kv_heads, int head_size, KvType type)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_size_(head_size),
      type_(type),
      numbers_(bytes_of_number(type) * head_size * kPageSize),
      block_bytes_(page_bytes(1, 1, head_size, type)),
      page_bytes_(page_bytes(layers, kv_heads, head_size, type)),
      slab_pages_(std::max<size_t>(1, kSlabTarget / page_bytes_)),
      slab_bytes_(slab_pages_ * page_bytes_) {}

void KvPool::ensure(int pages_end) {
    while (slabs_.size() * slab_pages_ < static_cast<size_t>(pages_end)) {
        try {
            slabs_.emplace_back(slab_bytes_);  // zero, and not resident until it is touched
        } catch (const std::bad_alloc&) {
            throw EngineError("the system gives no memory for " + std::to_string(slab_bytes_) + " more bytes of cells; " +
                              std::to_string(allocated_bytes()) + " are in use: lower kv_bytes");
        }
    }
}

void KvPool::trim(int pages_end) {
    const size_t needed = (static_cast<size_t>(pages_end) + slab_pages_ - 1) / slab_pages_;
    while (slabs_.size() > needed + 1) {
        slabs_.pop_back();
    }
}

void KvPool::write(const RowKernels& kernels, int page, int offset, int layer, int head, const HeadRows& rows) {
    uint8_t* keys = block(page, layer, head);
    uint8_t* values = keys + numbers_;
    const auto key = [&](int i) { return rows.keys + static_cast<size_t>(i) * rows.key_stride; };
    const auto value = [&](int i) { return rows.values + static_cast<size_t>(i) * rows.value_stride; };
    if (type_ == KvType::int8) {
        auto* scales = reinterpret_cast<uint16_t*>(values + numbers_) + offset;
        for (int i = 0; i < rows.positions; ++i) {
            auto* value_row = reinterpret_cast<int8_t*>(values) + static_cast<size_t>(offset + i) * head_size_;
            scales[i] = kernels.write_bytes(key(i), head_size_, reinterpret_cast<int8_t*>(keys) + offset + i, kPageSize);
            scales[kPageSize + i] = kernels.write_bytes(value(i), head_size_, value_row, 1);
        }
        return;
    }
    auto* key_column = reinterpret_cast<uint16_t*>(keys) + offset;
    for (int d = 0; d < head_size_; d += kHalvesWidth) {
        const int count = std::min(kHalvesWidth, head_size_ - d);
        for (int first = 0; first < rows.positions; first += kPositionsTogether) {
            const int positions = std::min(kPositionsTogether, rows.positions - first);
            uint16_t halves[kPositionsTogether * kHalvesWidth];
            for (int i = 0; i < positions; ++i) {
                kernels.write_halves(key(first + i) + d, count, halves + static_cast<size_t>(i) * kHalvesWidth);
            }
            kernels.spread_halves(halves, positions, count, key_column + static_cast<size_t>(d) * kPageSize + first, kPageSize);
        }
    }
    for (int i = 0; i < rows.positions; ++i) {
        kernels.write_halves(value(i), head_size_, reinterpret_cast<uint16_t*>(values) + static_cast<size_t>(offset + i) * head_size_);
    }
}

void KvPool::copy(int from, int to, int positions) {
    const size_t number = bytes_of_number(type_);
    const size_t count = static_cast<size_t>(positions);
    for (int layer = 0; layer < layers_; ++layer) {
        for (int head = 0; head < kv_heads_; ++head) {
            const uint8_t* source = block(from, layer, head);
            uint8_t* target = block(to, layer, head);
            for (int d = 0; d < head_size_; ++d) {
                const size_t row = static_cast<size_t>(d) * kPageSize * number;
                std::memcpy(target + row, source + row, count * number);
            }
            std::memcpy(target + numbers_, source + numbers_, count * head_size_ * number);
            if (type_ == KvType::int8) {
                for (const size_t scales : {2 * numbers_, 2 * numbers_ + kPageSize * sizeof(uint16_t)}) {
                    std::memcpy(target + scales, source + scales, count * sizeof(uint16_t));
                }
            }
        }
    }
}

}  // namespace tokenloom
