#include "kv_pool.h"

#include <ggml-cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace tokenloom {

namespace {
constexpr size_t kSlabTarget = size_t{16} << 20;
constexpr float kLargestHalf = 65504.0f;
}  // namespace

size_t KvPool::page_bytes(int layers, int kv_heads, int head_size, int page_size) {
    return size_t{2} * sizeof(ggml_fp16_t) * layers * kv_heads * head_size * page_size;
}

KvPool::KvPool(int layers, int kv_heads, int head_size, int page_size)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_size_(head_size),
      page_size_(page_size),
      block_(static_cast<size_t>(head_size) * page_size),
      page_bytes_(page_bytes(layers, kv_heads, head_size, page_size)),
      slab_pages_(std::max<size_t>(1, kSlabTarget / page_bytes_)),
      slab_bytes_(slab_pages_ * page_bytes_) {}

KvPool::~KvPool() {
    for (uint8_t* slab : slabs_) {
        ::munmap(slab, slab_bytes_);
    }
}

void KvPool::ensure(int pages_end) {
    while (slabs_.size() * slab_pages_ < static_cast<size_t>(pages_end)) {
        slabs_.reserve(slabs_.size() + 1);
        // Anonymous memory is zero, and not resident until it is touched.
        void* slab = ::mmap(nullptr, slab_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (slab == MAP_FAILED) {
            throw EngineError("the system gives no memory for " + std::to_string(slab_bytes_) + " more bytes of cells; " +
                              std::to_string(allocated_bytes()) + " are in use: lower kv_bytes");
        }
        slabs_.push_back(static_cast<uint8_t*>(slab));
    }
}

void KvPool::trim(int pages_end) {
    const size_t needed = (static_cast<size_t>(pages_end) + slab_pages_ - 1) / slab_pages_;
    while (slabs_.size() > needed + 1) {
        ::munmap(slabs_.back(), slab_bytes_);
        slabs_.pop_back();
    }
}

void KvPool::write(int page, int offset, int layer, const float* key, const float* value) {
    constexpr int width = 64;
    float clipped[width];
    ggml_fp16_t halves[width];
    for (int head = 0; head < kv_heads_; ++head) {
        ggml_fp16_t* k = keys(page, layer, head) + offset;
        ggml_fp16_t* v = values(page, layer, head) + static_cast<size_t>(offset) * head_size_;
        const float* from_k = key + static_cast<size_t>(head) * head_size_;
        const float* from_v = value + static_cast<size_t>(head) * head_size_;
        for (int d0 = 0; d0 < head_size_; d0 += width) {
            const int n = std::min(width, head_size_ - d0);
            for (int d = 0; d < n; ++d) {
                clipped[d] = std::clamp(from_k[d0 + d], -kLargestHalf, kLargestHalf);
            }
            ggml_cpu_fp32_to_fp16(clipped, halves, n);
            for (int d = 0; d < n; ++d) {
                k[static_cast<size_t>(d0 + d) * page_size_] = halves[d];
            }
            for (int d = 0; d < n; ++d) {
                clipped[d] = std::clamp(from_v[d0 + d], -kLargestHalf, kLargestHalf);
            }
            ggml_cpu_fp32_to_fp16(clipped, v + d0, n);
        }
    }
}

void KvPool::copy(int from, int to, int positions) {
    const size_t bytes = static_cast<size_t>(positions) * sizeof(ggml_fp16_t);
    for (int layer = 0; layer < layers_; ++layer) {
        for (int head = 0; head < kv_heads_; ++head) {
            for (int d = 0; d < head_size_; ++d) {
                const size_t row = static_cast<size_t>(d) * page_size_;
                std::memcpy(keys(to, layer, head) + row, keys(from, layer, head) + row, bytes);
            }
            std::memcpy(values(to, layer, head), values(from, layer, head), bytes * head_size_);
        }
    }
}

}  // namespace tokenloom
