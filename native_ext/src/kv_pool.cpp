#include "kv_pool.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "errors.h"

namespace tokenloom {

namespace {

constexpr size_t kSlabTarget = size_t{16} << 20;
constexpr float kLargestHalf = 65504.0f;
constexpr float kLargestByte = 127.0f;
constexpr int kWidth = 64;  // numbers converted at a time

size_t bytes_of_number(KvType type) { return type == KvType::f16 ? sizeof(uint16_t) : sizeof(int8_t); }

// Numbers of a head, each `stride` of the last.
void write_halves(const float* from, int count, uint16_t* to, size_t stride) {
    float clipped[kWidth];
    ggml_fp16_t halves[kWidth];
    for (int d0 = 0; d0 < count; d0 += kWidth) {
        const int n = std::min(kWidth, count - d0);
        for (int d = 0; d < n; ++d) {
            clipped[d] = std::clamp(from[d0 + d], -kLargestHalf, kLargestHalf);
        }
        ggml_cpu_fp32_to_fp16(clipped, halves, n);
        for (int d = 0; d < n; ++d) {
            to[static_cast<size_t>(d0 + d) * stride] = halves[d];
        }
    }
}

// The same, rounded to multiples of a scale, which is returned as float16: NaN if a number is.
uint16_t write_bytes(const float* from, int count, int8_t* to, size_t stride) {
    float most = 0.0f;
    bool numbers = true;
    for (int d = 0; d < count; ++d) {
        most = std::max(most, std::abs(from[d]));
        numbers = numbers && from[d] == from[d];
    }
    if (!numbers) {
        for (int d = 0; d < count; ++d) {
            to[static_cast<size_t>(d) * stride] = 0;
        }
        return ggml_fp32_to_fp16(std::numeric_limits<float>::quiet_NaN());
    }
    const ggml_fp16_t scale = ggml_fp32_to_fp16(std::min(most, kLargestHalf) / kLargestByte);
    const float step = ggml_fp16_to_fp32(scale);
    const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
    for (int d = 0; d < count; ++d) {
        const float x = std::clamp(std::clamp(from[d], -kLargestHalf, kLargestHalf) * inverse, -kLargestByte, kLargestByte);
        // Adding 1.5 * 2^23 rounds to the nearest integer, and leaves it in the lowest bits.
        to[static_cast<size_t>(d) * stride] = static_cast<int8_t>(std::bit_cast<uint32_t>(x + 12582912.0f));
    }
    return scale;
}

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

void KvPool::write(int page, int offset, int layer, int head, const float* key, const float* value) {
    uint8_t* keys = block(page, layer, head);
    uint8_t* values = keys + numbers_;
    const size_t row = static_cast<size_t>(offset) * head_size_;
    if (type_ == KvType::f16) {
        write_halves(key, head_size_, reinterpret_cast<uint16_t*>(keys) + offset, kPageSize);
        write_halves(value, head_size_, reinterpret_cast<uint16_t*>(values) + row, 1);
        return;
    }
    auto* scales = reinterpret_cast<uint16_t*>(values + numbers_);
    scales[offset] = write_bytes(key, head_size_, reinterpret_cast<int8_t*>(keys) + offset, kPageSize);
    scales[kPageSize + offset] = write_bytes(value, head_size_, reinterpret_cast<int8_t*>(values) + row, 1);
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
