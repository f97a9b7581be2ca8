// The pages of KV cells, as integers: who owns which page, and where the next token of a sequence goes.
//
// The contract, in prose:
//
// - A sequence is a list of token ids. The token at position p has its keys and values in cell p % page_size of page
//   pages(sequence)[p / page_size]. Nothing here knows what a cell holds or how large it is; whoever holds the memory
//   indexes it by page number.
// - A page may belong to several sequences; it is reference-counted and becomes free when its last owner lets go. All
//   owners have it at the same index of their page lists, own the same pages before it, and have the same tokens up to
//   where the shorter of them ends.
// - Numbers are handed out lowest first, of pages and of sequences, so that storage that grows by page number stays
//   compact: pages_end() is how many pages of storage are needed now.
// - clone() and rewind() copy nothing. A sequence that ends inside a page others own too gets a copy of the filled part
//   when it is next appended to. When all owners of such a page are appended to in one batch, the one that fills most of
//   it (the lowest number among equals) keeps the original, so n owners cost n - 1 copies.
// - reserve() takes a whole batch of appends: it checks everything and then places every token, or throws and changes
//   nothing. The returned Reservation must be committed; when it is destroyed uncommitted, every sequence and page is as
//   it was before reserve(), however much of the batch had been written: a reserved write never touches a cell that
//   some sequence's committed tokens use. While a Reservation is open, the Cells already answer length(), tokens() and
//   pages() as if it were committed, and every call that changes something throws std::logic_error.
// - The holder of memory makes every copy of copies() before the first write of the batch. No page is both source and
//   target of copies.
// - No thread safety: one thread at a time, reading included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "system/errors.h"
#include "cache/page_map.h"

namespace tokenloom {

using Token = std::int32_t;
using SequenceId = std::int32_t;

// Tokens to append to one sequence. Appends of one batch that name the same sequence abut, in batch order.
struct Append {
    SequenceId sequence;
    std::span<const Token> tokens;
};

// Copy cells [0, positions) of page `from` to page `to`, in every layer. 0 < positions < page_size.
struct PageCopy {
    Page from;
    Page to;
    std::int32_t positions;
};

// Where one token's keys and values go. `position` is the token's index in its sequence; offset = position % page_size.
struct Slot {
    SequenceId sequence;
    std::int32_t position;
    Page page;
    std::int32_t offset;
};

// Counts since construction.
struct CellsCounters {
    std::int64_t tokens = 0;            // appended and committed
    std::int64_t reservations = 0;      // committed
    std::int64_t rollbacks = 0;         // reservations destroyed uncommitted
    std::int64_t refusals = 0;          // reserve() threw CellsExhausted
    std::int64_t clones = 0;
    std::int64_t rewinds = 0;
    std::int64_t copies = 0;            // page copies, committed
    std::int64_t copied_positions = 0;  // cells in them
};

class Cells;

// An open batch of appends. Move-only; must not outlive its Cells.
class Reservation {
   public:
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&&) = delete;
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();  // rolls back unless committed

    // One per token of the batch: the tokens of the first append, then those of the second, ...
    std::span<const Slot> slots() const noexcept { return slots_; }

    // To be made before any write.
    std::span<const PageCopy> copies() const noexcept { return copies_; }

    // Pages taken from the free ones, targets of copies included.
    std::int32_t taken() const noexcept { return taken_; }

    // Storage must hold pages [0, pages_end) before the first copy or write.
    std::int32_t pages_end() const noexcept { return pages_end_; }

    bool open() const noexcept { return cells_ != nullptr; }

    // The appended tokens stay. Throws std::logic_error when not open; otherwise cannot fail.
    void commit();

    // What the destructor does. A second call, and one after commit, does nothing.
    void rollback() noexcept;

   private:
    friend class Cells;
    struct Undo {
        SequenceId sequence;
        std::size_t length;      // before the batch
        std::size_t page_count;  // before the batch
    };

    explicit Reservation(Cells* cells) noexcept : cells_(cells) {}

    Cells* cells_;
    std::vector<Slot> slots_;
    std::vector<PageCopy> copies_;
    std::vector<SequenceId> copied_;  // whose last page copies_[i] replaced
    std::vector<Undo> undo_;          // one per sequence touched
    std::int32_t taken_ = 0;
    std::int32_t pages_end_ = 0;
};

class Cells {
   public:
    static constexpr std::int32_t default_page_size = 64;

    // `context`: most tokens a sequence may hold. All at least 1 (max_pages may be 0); throws std::invalid_argument.
    Cells(std::int32_t max_pages, std::int32_t max_sequences, std::int32_t context,
          std::int32_t page_size = default_page_size);
    Cells(const Cells&) = delete;
    Cells& operator=(const Cells&) = delete;

    // An empty sequence. Throws SequencesExhausted.
    SequenceId create();

    // Forget a sequence: its number, and the pages only it owned, are free again. BatchError: unknown sequence.
    void remove(SequenceId sequence);

    // A new sequence with the first `upto` tokens, or all, sharing the pages that hold them.
    // BatchError: unknown sequence, or upto not within [0, length]. SequencesExhausted.
    SequenceId clone(SequenceId sequence, std::int64_t upto);
    SequenceId clone(SequenceId sequence) { return clone(sequence, length(sequence)); }

    // Drop all but the first `to` tokens. BatchError: unknown sequence, or to not within [0, length].
    void rewind(SequenceId sequence, std::int64_t to);

    // BatchError: unknown sequence, an append without tokens. ContextFull. CellsExhausted, with the pages the batch needs
    // and those that are free. Checked in this order, all before anything changes.
    [[nodiscard]] Reservation reserve(std::span<const Append> batch);

    // Pages that appending growth.second tokens to each sequence growth.first in one batch would take from the free
    // ones, copies included. A sequence may be named twice. BatchError: unknown sequence, negative growth.
    std::int64_t pages_needed(std::span<const std::pair<SequenceId, std::int64_t>> growth) const;

    // Pages that remove(sequence) alone would free.
    std::int32_t pages_held(SequenceId sequence) const;

    // Each throws BatchError for an unknown sequence. The spans are valid until the next call that changes something.
    std::int32_t length(SequenceId sequence) const;
    std::span<const Token> tokens(SequenceId sequence) const;
    std::span<const Page> pages(SequenceId sequence) const;

    bool exists(SequenceId sequence) const noexcept;
    std::vector<SequenceId> sequences() const;  // ascending
    std::int32_t owners(Page page) const;       // 0: free. std::out_of_range beyond max_pages

    std::int32_t page_size() const noexcept { return page_size_; }
    std::int32_t max_pages() const noexcept { return map_.capacity(); }
    std::int32_t max_sequences() const noexcept { return max_sequences_; }
    std::int32_t context() const noexcept { return context_; }
    std::int32_t pages_used() const noexcept { return map_.used(); }
    std::int32_t pages_free() const noexcept { return map_.available(); }
    std::int32_t pages_end() const noexcept { return map_.end(); }
    std::int32_t sequence_count() const noexcept { return count_; }
    const CellsCounters& counters() const noexcept { return counters_; }

    // Verify every invariant above; throws std::logic_error that says which is broken. For tests: linear in all tokens.
    void check() const;

   private:
    friend class Reservation;
    struct Sequence {
        std::vector<Token> tokens;
        std::vector<Page> pages;
    };
    // What one sequence does in a batch.
    struct Growth {
        SequenceId sequence;
        std::int64_t length;  // before
        std::int64_t tokens;  // appended in all
        bool copy = false;    // its last page must be copied first
    };

    const Sequence& at(SequenceId sequence) const;
    Sequence& at(SequenceId sequence);
    std::int64_t page_count(std::int64_t length) const noexcept { return (length + page_size_ - 1) / page_size_; }
    std::vector<Growth> merge(std::span<const std::pair<SequenceId, std::int64_t>> growth) const;
    std::int64_t plan(std::vector<Growth>& growth) const;  // decides the copies; returns the pages needed
    void require_closed() const;
    SequenceId lowest_free() const;
    void drop(Page page) noexcept;

    std::int32_t page_size_;
    std::int32_t max_sequences_;
    std::int32_t context_;
    PageMap map_;
    std::vector<std::int32_t> owners_;                 // by page
    std::vector<std::unique_ptr<Sequence>> sequences_;  // by number
    std::int32_t count_ = 0;
    bool reserved_ = false;
    CellsCounters counters_;
};

}  // namespace tokenloom
