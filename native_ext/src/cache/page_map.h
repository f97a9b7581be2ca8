// Which page numbers are in use: a bitmap that hands out the lowest free one, so that storage stays compact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tokenloom {

using Page = std::int32_t;

class PageMap {
   public:
    explicit PageMap(std::int32_t capacity);

    std::int32_t capacity() const noexcept { return capacity_; }
    std::int32_t used() const noexcept { return used_; }
    std::int32_t available() const noexcept { return capacity_ - used_; }
    bool contains(Page page) const noexcept;
    std::int32_t end() const noexcept;  // one more than the highest number in use, 0 when none is
    Page take();                        // throws std::logic_error when none is left
    void give(Page page) noexcept;

   private:
    std::int32_t capacity_;
    std::int32_t used_ = 0;
    std::size_t lowest_ = 0;  // every word before this one is full
    std::vector<std::uint64_t> words_;
};

}  // namespace tokenloom
