#include "cache/page_map.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace tokenloom {

PageMap::PageMap(std::int32_t capacity) : capacity_(capacity), words_((static_cast<std::size_t>(capacity) + 63) / 64) {}

bool PageMap::contains(Page page) const noexcept {
    return page >= 0 && page < capacity_ && (words_[static_cast<std::size_t>(page) / 64] >> (page % 64) & 1u) != 0;
}

std::int32_t PageMap::end() const noexcept {
    for (std::size_t word = words_.size(); word-- > 0;) {
        if (words_[word] != 0) {
            return static_cast<std::int32_t>(word * 64) + 64 - std::countl_zero(words_[word]);
        }
    }
    return 0;
}

Page PageMap::take() {
    if (used_ == capacity_) {
        throw std::logic_error("no free page to take");
    }
    while (words_[lowest_] == ~std::uint64_t{0}) {
        ++lowest_;
    }
    const int bit = std::countr_one(words_[lowest_]);
    words_[lowest_] |= std::uint64_t{1} << bit;
    ++used_;
    return static_cast<Page>(lowest_ * 64) + bit;
}

void PageMap::give(Page page) noexcept {
    const std::size_t word = static_cast<std::size_t>(page) / 64;
    words_[word] &= ~(std::uint64_t{1} << (page % 64));
    lowest_ = std::min(lowest_, word);
    --used_;
}

}  // namespace tokenloom
