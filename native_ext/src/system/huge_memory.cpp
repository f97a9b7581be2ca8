#include "system/huge_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tokenloom {

namespace {

size_t rounded_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
#ifdef MADV_HUGEPAGE
    ::madvise(data, bytes, MADV_HUGEPAGE);  // a failure costs speed, no more
#else
    (void)data, (void)bytes;
#endif
}

HugeMemory::HugeMemory(size_t bytes) : data_(nullptr), bytes_(rounded_up(bytes, static_cast<size_t>(::sysconf(_SC_PAGESIZE)))) {
    const size_t room = bytes_ + kHugePage;
    if (bytes_ < bytes || room < bytes_) {
        throw std::bad_alloc();
    }
    void* mapped = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    auto* begin = static_cast<uint8_t*>(mapped);
    data_ = reinterpret_cast<uint8_t*>(rounded_up(reinterpret_cast<uintptr_t>(begin), kHugePage));
    if (data_ > begin) {
        ::munmap(begin, static_cast<size_t>(data_ - begin));
    }
    if (uint8_t* end = data_ + bytes_; end < begin + room) {
        ::munmap(end, static_cast<size_t>(begin + room - end));
    }
    prefer_huge_pages(data_, bytes_);
}

HugeMemory::~HugeMemory() {
    if (data_ != nullptr) {
        ::munmap(data_, bytes_);
    }
}

}  // namespace tokenloom
