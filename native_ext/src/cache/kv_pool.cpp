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

std::vector<KvPool::Place> KvPool::places_of(std::span<const CellShape> layers, KvType type) {
    const size_t number = bytes_of_number(type) * kPageSize;
    const size_t scales = type == KvType::f16 ? 0 : 2 * sizeof(uint16_t) * kPageSize;
    std::vector<Place> places;
    size_t offset = 0;
    for (const CellShape& shape : layers) {
        Place place{shape, offset, number * shape.key_size, number * shape.value_size, 0};
        place.block_bytes = place.key_bytes + place.value_bytes + scales;
        offset += place.block_bytes * static_cast<size_t>(shape.kv_heads);
        places.push_back(place);
    }
    return places;
}

size_t KvPool::page_bytes(std::span<const CellShape> layers, KvType type) {
    size_t bytes = 0;
    for (const Place& place : places_of(layers, type)) {
        bytes += place.block_bytes * static_cast<size_t>(place.shape.kv_heads);
    }
    return bytes;
}

KvPool::KvPool(std::span<const CellShape> layers, KvType type)
    : layers_(places_of(layers, type)),
      type_(type),
      page_bytes_(page_bytes(layers, type)),
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
    const Place& place = layers_[static_cast<size_t>(layer)];
    const int key_size = place.shape.key_size;
    const int value_size = place.shape.value_size;
    uint8_t* keys = block(page, layer, head);
    uint8_t* values = keys + place.key_bytes;
    const auto key = [&](int i) { return rows.keys + static_cast<size_t>(i) * rows.key_stride; };
    const auto value = [&](int i) { return rows.values + static_cast<size_t>(i) * rows.value_stride; };
    if (type_ == KvType::int8) {
        auto* scales = reinterpret_cast<uint16_t*>(values + place.value_bytes) + offset;
        for (int i = 0; i < rows.positions; ++i) {
            auto* value_row = reinterpret_cast<int8_t*>(values) + static_cast<size_t>(offset + i) * value_size;
            scales[i] = kernels.write_bytes(key(i), key_size, reinterpret_cast<int8_t*>(keys) + offset + i, kPageSize);
            scales[kPageSize + i] = kernels.write_bytes(value(i), value_size, value_row, 1);
        }
        return;
    }
    auto* key_column = reinterpret_cast<uint16_t*>(keys) + offset;
    for (int d = 0; d < key_size; d += kHalvesWidth) {
        const int count = std::min(kHalvesWidth, key_size - d);
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
        kernels.write_halves(value(i), value_size, reinterpret_cast<uint16_t*>(values) + static_cast<size_t>(offset + i) * value_size);
    }
}

void KvPool::copy(int from, int to, int positions) {
    const size_t number = bytes_of_number(type_);
    const size_t count = static_cast<size_t>(positions);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        const Place& place = layers_[layer];
        for (int head = 0; head < place.shape.kv_heads; ++head) {
            const uint8_t* source = block(from, static_cast<int>(layer), head);
            uint8_t* target = block(to, static_cast<int>(layer), head);
            for (int d = 0; d < place.shape.key_size; ++d) {
                const size_t row = static_cast<size_t>(d) * kPageSize * number;
                std::memcpy(target + row, source + row, count * number);
            }
            std::memcpy(target + place.key_bytes, source + place.key_bytes, count * place.shape.value_size * number);
            if (type_ == KvType::int8) {
                const size_t scales = place.key_bytes + place.value_bytes;
                for (const size_t at : {scales, scales + kPageSize * sizeof(uint16_t)}) {
                    std::memcpy(target + at, source + at, count * sizeof(uint16_t));
                }
            }
        }
    }
}

}  // namespace tokenloom
