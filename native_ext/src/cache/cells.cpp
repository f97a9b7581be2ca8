// Sequences and their pages: everything but appending (reservation.cpp).
#include "cache/cells.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tokenloom {

namespace {

std::string named(SequenceId sequence) { return "sequence " + std::to_string(sequence); }

}  // namespace

Cells::Cells(std::int32_t max_pages, std::int32_t max_sequences, std::int32_t context, std::int32_t page_size)
    : page_size_(page_size), max_sequences_(max_sequences), context_(context), map_(std::max(max_pages, 0)) {
    const auto require = [](const char* field, std::int32_t value, std::int32_t least) {
        if (value < least) {
            throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) + "; it must be at least " +
                                        std::to_string(least));
        }
    };
    require("max_pages", max_pages, 0);
    require("max_sequences", max_sequences, 1);
    require("context", context, 1);
    require("page_size", page_size, 1);
    owners_.resize(static_cast<std::size_t>(max_pages), 0);
}

const Cells::Sequence& Cells::at(SequenceId sequence) const {
    if (!exists(sequence)) {
        throw BatchError(named(sequence) + " does not exist");
    }
    return *sequences_[static_cast<std::size_t>(sequence)];
}

Cells::Sequence& Cells::at(SequenceId sequence) { return const_cast<Sequence&>(std::as_const(*this).at(sequence)); }

void Cells::require_closed() const {
    if (reserved_) {
        throw std::logic_error("the cells cannot change while a reservation is open");
    }
}

SequenceId Cells::lowest_free() const {
    if (count_ == max_sequences_) {
        throw SequencesExhausted("all " + std::to_string(max_sequences_) + " sequences are in use");
    }
    const auto found = std::find(sequences_.begin(), sequences_.end(), nullptr);
    return static_cast<SequenceId>(found - sequences_.begin());
}

void Cells::drop(Page page) noexcept {
    if (--owners_[static_cast<std::size_t>(page)] == 0) {
        map_.give(page);
    }
}

SequenceId Cells::create() {
    require_closed();
    const SequenceId number = lowest_free();
    auto fresh = std::make_unique<Sequence>();
    if (static_cast<std::size_t>(number) == sequences_.size()) {
        sequences_.push_back(std::move(fresh));
    } else {
        sequences_[static_cast<std::size_t>(number)] = std::move(fresh);
    }
    ++count_;
    return number;
}

void Cells::remove(SequenceId sequence) {
    require_closed();
    for (const Page page : at(sequence).pages) {
        drop(page);
    }
    sequences_[static_cast<std::size_t>(sequence)].reset();
    --count_;
}

SequenceId Cells::clone(SequenceId sequence, std::int64_t upto) {
    require_closed();
    const Sequence& source = at(sequence);
    const auto length = static_cast<std::int64_t>(source.tokens.size());
    if (upto < 0 || upto > length) {
        throw BatchError("clone upto is " + std::to_string(upto) + "; " + named(sequence) + " has " +
                         std::to_string(length) + " tokens");
    }
    Sequence copy{{source.tokens.begin(), source.tokens.begin() + upto},
                  {source.pages.begin(), source.pages.begin() + page_count(upto)}};
    const SequenceId number = create();
    Sequence& held = *sequences_[static_cast<std::size_t>(number)];
    held = std::move(copy);
    for (const Page page : held.pages) {
        owners_[static_cast<std::size_t>(page)] += 1;
    }
    counters_.clones += 1;
    return number;
}

void Cells::rewind(SequenceId sequence, std::int64_t to) {
    require_closed();
    Sequence& held = at(sequence);
    if (to < 0 || to > static_cast<std::int64_t>(held.tokens.size())) {
        throw BatchError("rewind to is " + std::to_string(to) + "; " + named(sequence) + " has " +
                         std::to_string(held.tokens.size()) + " tokens");
    }
    held.tokens.resize(static_cast<std::size_t>(to));
    while (static_cast<std::int64_t>(held.pages.size()) > page_count(to)) {
        drop(held.pages.back());
        held.pages.pop_back();
    }
    counters_.rewinds += 1;
}

std::int32_t Cells::pages_held(SequenceId sequence) const {
    const std::vector<Page>& pages = at(sequence).pages;
    return static_cast<std::int32_t>(
        std::count_if(pages.begin(), pages.end(), [this](Page page) { return owners(page) == 1; }));
}

std::int32_t Cells::length(SequenceId sequence) const { return static_cast<std::int32_t>(at(sequence).tokens.size()); }

std::span<const Token> Cells::tokens(SequenceId sequence) const { return at(sequence).tokens; }

std::span<const Page> Cells::pages(SequenceId sequence) const { return at(sequence).pages; }

bool Cells::exists(SequenceId sequence) const noexcept {
    return sequence >= 0 && static_cast<std::size_t>(sequence) < sequences_.size() &&
           sequences_[static_cast<std::size_t>(sequence)] != nullptr;
}

std::vector<SequenceId> Cells::sequences() const {
    std::vector<SequenceId> numbers;
    for (std::size_t number = 0; number < sequences_.size(); ++number) {
        if (sequences_[number] != nullptr) {
            numbers.push_back(static_cast<SequenceId>(number));
        }
    }
    return numbers;
}

std::int32_t Cells::owners(Page page) const { return owners_.at(static_cast<std::size_t>(page)); }

}  // namespace tokenloom
