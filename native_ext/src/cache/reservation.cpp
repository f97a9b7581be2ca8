// Appending a batch: what it needs, placing it, and undoing that.
#include "cache/cells.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace tokenloom {

namespace {

// Room for `extra` more elements, growing by doubling so that appending one at a time stays linear.
template <typename T>
void make_room(std::vector<T>& vector, std::size_t extra) {
    const std::size_t wanted = vector.size() + extra;
    if (wanted > vector.capacity()) {
        vector.reserve(std::max(wanted, 2 * vector.capacity()));
    }
}

std::string named(SequenceId sequence) { return "sequence " + std::to_string(sequence); }

}  // namespace

std::vector<Cells::Growth> Cells::merge(std::span<const std::pair<SequenceId, std::int64_t>> growth) const {
    std::vector<Growth> merged;
    std::unordered_map<SequenceId, std::size_t> index;
    for (const auto& [sequence, tokens] : growth) {
        const auto [found, fresh] = index.try_emplace(sequence, merged.size());
        if (fresh) {
            merged.push_back({sequence, static_cast<std::int64_t>(at(sequence).tokens.size()), 0});
        }
        merged[found->second].tokens += tokens;
    }
    return merged;
}

std::int64_t Cells::plan(std::vector<Growth>& growth) const {
    struct Shared {
        std::int32_t appending = 0;
        Growth* longest = nullptr;
    };
    std::unordered_map<Page, Shared> shared;
    std::int64_t needed = 0;
    for (Growth& one : growth) {
        needed += page_count(one.length + one.tokens) - page_count(one.length);
        if (one.tokens == 0 || one.length % page_size_ == 0) {
            continue;
        }
        const Page last = at(one.sequence).pages.back();
        if (owners(last) == 1) {
            continue;
        }
        one.copy = true;
        ++needed;
        Shared& page = shared[last];
        ++page.appending;
        if (page.longest == nullptr || one.length > page.longest->length ||
            (one.length == page.longest->length && one.sequence < page.longest->sequence)) {
            page.longest = &one;
        }
    }
    // Where every owner is appended to, the longest writes beyond what all others use of the page, so it may stay.
    for (auto& [page, share] : shared) {
        if (share.appending == owners(page)) {
            share.longest->copy = false;
            --needed;
        }
    }
    return needed;
}

Reservation Cells::reserve(std::span<const Append> batch) {
    require_closed();
    std::vector<std::pair<SequenceId, std::int64_t>> sizes;
    sizes.reserve(batch.size());
    std::size_t total = 0;
    for (const Append& append : batch) {
        at(append.sequence);
        if (append.tokens.empty()) {
            throw BatchError("an append to " + named(append.sequence) + " has no tokens; it needs at least 1");
        }
        sizes.emplace_back(append.sequence, static_cast<std::int64_t>(append.tokens.size()));
        total += append.tokens.size();
    }
    std::vector<Growth> growth = merge(sizes);
    for (const Growth& one : growth) {
        if (one.length + one.tokens > context_) {
            throw ContextFull(named(one.sequence) + " would grow from " + std::to_string(one.length) + " to " +
                              std::to_string(one.length + one.tokens) + " tokens; the context is " +
                              std::to_string(context_));
        }
    }
    const std::int64_t needed = plan(growth);
    if (needed > pages_free()) {
        counters_.refusals += 1;
        throw CellsExhausted(needed, pages_free());
    }

    // Everything that may throw comes before the first change.
    Reservation reservation(nullptr);
    reservation.slots_.reserve(total);
    reservation.copies_.reserve(growth.size());
    reservation.copied_.reserve(growth.size());
    reservation.undo_.reserve(growth.size());
    for (const Growth& one : growth) {
        Sequence& held = at(one.sequence);
        make_room(held.tokens, static_cast<std::size_t>(one.tokens));
        make_room(held.pages, static_cast<std::size_t>(page_count(one.length + one.tokens) - page_count(one.length)));
    }

    reservation.cells_ = this;
    reserved_ = true;
    for (const Growth& one : growth) {
        Sequence& held = at(one.sequence);
        reservation.undo_.push_back({one.sequence, held.tokens.size(), held.pages.size()});
        if (one.copy) {
            const Page from = held.pages.back();
            const Page to = map_.take();
            owners_[static_cast<std::size_t>(to)] = 1;
            drop(from);
            held.pages.back() = to;
            reservation.copies_.push_back({from, to, static_cast<std::int32_t>(one.length % page_size_)});
            reservation.copied_.push_back(one.sequence);
        }
        while (static_cast<std::int64_t>(held.pages.size()) < page_count(one.length + one.tokens)) {
            const Page page = map_.take();
            owners_[static_cast<std::size_t>(page)] = 1;
            held.pages.push_back(page);
        }
    }
    for (const Append& append : batch) {
        Sequence& held = at(append.sequence);
        for (const Token token : append.tokens) {
            const auto position = static_cast<std::int32_t>(held.tokens.size());
            held.tokens.push_back(token);
            reservation.slots_.push_back({append.sequence, position,
                                          held.pages[static_cast<std::size_t>(position / page_size_)],
                                          position % page_size_});
        }
    }
    reservation.taken_ = static_cast<std::int32_t>(needed);
    reservation.pages_end_ = pages_end();
    return reservation;
}

std::int64_t Cells::pages_needed(std::span<const std::pair<SequenceId, std::int64_t>> growth) const {
    for (const auto& [sequence, tokens] : growth) {
        if (tokens < 0 || tokens > std::numeric_limits<std::int32_t>::max()) {
            throw BatchError("growth of " + named(sequence) + " is " + std::to_string(tokens) +
                             "; it must be within 0 and " + std::to_string(std::numeric_limits<std::int32_t>::max()));
        }
    }
    std::vector<Growth> merged = merge(growth);
    return plan(merged);
}

Reservation::Reservation(Reservation&& other) noexcept
    : cells_(std::exchange(other.cells_, nullptr)),
      slots_(std::move(other.slots_)),
      copies_(std::move(other.copies_)),
      copied_(std::move(other.copied_)),
      undo_(std::move(other.undo_)),
      taken_(other.taken_),
      pages_end_(other.pages_end_) {}

Reservation::~Reservation() { rollback(); }

void Reservation::commit() {
    if (cells_ == nullptr) {
        throw std::logic_error("this reservation was already committed or rolled back");
    }
    CellsCounters& counters = cells_->counters_;
    counters.reservations += 1;
    counters.tokens += static_cast<std::int64_t>(slots_.size());
    counters.copies += static_cast<std::int64_t>(copies_.size());
    for (const PageCopy& copy : copies_) {
        counters.copied_positions += copy.positions;
    }
    cells_->reserved_ = false;
    cells_ = nullptr;
}

void Reservation::rollback() noexcept {
    if (cells_ == nullptr) {
        return;
    }
    for (const Undo& undo : undo_) {
        Cells::Sequence& held = *cells_->sequences_[static_cast<std::size_t>(undo.sequence)];
        while (held.pages.size() > undo.page_count) {
            cells_->drop(held.pages.back());
            held.pages.pop_back();
        }
        held.tokens.resize(undo.length);
    }
    for (std::size_t index = 0; index < copies_.size(); ++index) {
        Cells::Sequence& held = *cells_->sequences_[static_cast<std::size_t>(copied_[index])];
        cells_->drop(copies_[index].to);
        held.pages.back() = copies_[index].from;
        cells_->owners_[static_cast<std::size_t>(copies_[index].from)] += 1;
    }
    cells_->counters_.rollbacks += 1;
    cells_->reserved_ = false;
    cells_ = nullptr;
}

}  // namespace tokenloom
