// One forward's batch on the flat token axis: row r is one token of one sequence at one position. All of it is integers
// that the cells (cells.h) have already placed.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cells.h"

namespace tokenloom {

// Rows that are consecutive tokens of one sequence.
struct Run {
    int first_row;
    int rows;
    int first_position;
    std::span<const Page> pages;  // of the sequence, from position 0
};

struct FlatBatch {
    std::vector<Token> tokens;         // one per row
    std::span<const Slot> slots;       // one per row
    std::vector<Run> runs;             // cover all rows, in order
    std::vector<std::int32_t> outputs; // rows whose logits are asked for, ascending
    int rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace tokenloom
