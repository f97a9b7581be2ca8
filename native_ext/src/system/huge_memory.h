// Memory that is read all through again and again: in pages of 2 MiB where the system gives such, so that the processor
// need not look up where each 4 KiB lie (in a virtual machine each miss is two walks of tables).
//
// Where it does not (transparent_hugepage/enabled is "never", no such pages are free, another system), it is ordinary memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tokenloom {

constexpr size_t kHugePage = size_t{2} << 20;

// Asks for huge pages for what is touched from now on of a mapping, from its beginning.
void prefer_huge_pages(void* data, size_t bytes);

class HugeMemory {
public:
    // `bytes` that are zero and begin at a multiple of kHugePage, none of them resident until it is touched; what lies
    // behind the last whole huge page comes in ordinary ones. Throws std::bad_alloc.
    explicit HugeMemory(size_t bytes);
    ~HugeMemory();
    HugeMemory(HugeMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    HugeMemory& operator=(HugeMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    uint8_t* data_;
    size_t bytes_;
};

}  // namespace tokenloom
