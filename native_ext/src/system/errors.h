// What the native code raises on purpose: one class per exception of engine.py, under the same name.
//
// Everything derives from EngineError, so a caller that only needs "did the engine refuse this" catches one type.
// bind_errors() (bind_errors.cpp) registers the translator that turns each into its Python namesake of
// tokenloom.native_ext.engine; anything else that escapes is a defect and reaches Python as RuntimeError.
// Messages name the field, the value and the limit.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tokenloom {

struct EngineError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The model file cannot be served.
struct ModelError : EngineError {
    using EngineError::EngineError;
};

// An entry of a batch, or an argument of a call about a sequence, is malformed.
struct BatchError : EngineError {
    using EngineError::EngineError;
};

// An entry would grow its sequence beyond the context length.
struct ContextFull : BatchError {
    using BatchError::BatchError;
};

// Not enough free pages for a batch. Both numbers count pages; nothing was changed.
struct CellsExhausted : EngineError {
    CellsExhausted(std::int64_t needed_pages, std::int64_t free_pages)
        : EngineError("the batch needs " + std::to_string(needed_pages) + " pages of cells and " +
                      std::to_string(free_pages) + " are free"),
          needed(needed_pages),
          free(free_pages) {}

    std::int64_t needed;
    std::int64_t free;
};

// Every sequence number is taken.
struct SequencesExhausted : EngineError {
    using EngineError::EngineError;
};

// The engine holds one sequence at a time.
struct CloneRefused : EngineError {
    using EngineError::EngineError;
};

}  // namespace tokenloom
