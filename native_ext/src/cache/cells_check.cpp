// The invariants of the cells, verified from scratch.
#include "cache/cells.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tokenloom {

void Cells::check() const {
    const auto fail = [](const std::string& what) { throw std::logic_error("cells: " + what); };
    const auto fail_sequence = [&](SequenceId number, const std::string& what) {
        fail("sequence " + std::to_string(number) + what);
    };
    struct Use {
        std::int32_t owners = 0;
        std::size_t index = 0;
        const Sequence* longest = nullptr;
    };
    std::vector<Use> uses(owners_.size());
    const auto size = static_cast<std::size_t>(page_size_);

    for (const SequenceId number : sequences()) {
        const Sequence& held = at(number);
        const auto length = static_cast<std::int64_t>(held.tokens.size());
        if (length > context_ || static_cast<std::int64_t>(held.pages.size()) != page_count(length)) {
            fail_sequence(number, " has " + std::to_string(length) + " tokens in " + std::to_string(held.pages.size()) +
                                      " pages");
        }
        for (std::size_t index = 0; index < held.pages.size(); ++index) {
            Use& use = uses.at(static_cast<std::size_t>(held.pages[index]));
            if (use.owners++ > 0 && use.index != index) {
                fail_sequence(number, " has a page at another index than its other owner");
            }
            use.index = index;
            if (use.longest == nullptr || held.tokens.size() > use.longest->tokens.size()) {
                use.longest = &held;
            }
        }
    }
    for (const SequenceId number : sequences()) {
        const Sequence& held = at(number);
        for (std::size_t index = 0; index < held.pages.size(); ++index) {
            const Sequence& longest = *uses[static_cast<std::size_t>(held.pages[index])].longest;
            const std::size_t end = std::min(held.tokens.size(), (index + 1) * size);
            if (!std::equal(held.tokens.begin() + static_cast<std::ptrdiff_t>(index * size),
                            held.tokens.begin() + static_cast<std::ptrdiff_t>(end),
                            longest.tokens.begin() + static_cast<std::ptrdiff_t>(index * size)) ||
                (index > 0 && longest.pages[index - 1] != held.pages[index - 1])) {
                fail_sequence(number, " shares a page with a sequence of other tokens");
            }
        }
    }
    std::int32_t used = 0;
    for (std::size_t page = 0; page < uses.size(); ++page) {
        if (uses[page].owners != owners_[page] || map_.contains(static_cast<Page>(page)) != (owners_[page] > 0)) {
            fail("page " + std::to_string(page) + " counts " + std::to_string(owners_[page]) + " owners and has " +
                 std::to_string(uses[page].owners));
        }
        used += owners_[page] > 0 ? 1 : 0;
    }
    if (used != map_.used() || static_cast<std::int32_t>(sequences().size()) != count_) {
        fail("the counts of used pages or of sequences are wrong");
    }
}

}  // namespace tokenloom
