// Weights into their packed form at load: from a file of an earlier load (packed_cache.h) when there is one that fits,
// otherwise from the model file, and then into such a file if one is wanted.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "system/huge_memory.h"
#include "packing/packed_cache.h"
#include "packing/packed_matrix.h"

namespace tokenloom {

struct Packing {
    std::string cache;        // path of the file; empty: none
    std::string fingerprint;  // of the model file, 64 hex digits; needed with a file
    Progress progress;        // after each matrix, and while waiting for another process; may be null
    double patience = 60.0;   // seconds that another process, which packs for the same file, may take for one matrix
};

struct PackSource {
    ggml_type type;  // one that can be packed
    const uint8_t* data;
    int64_t rows;
    int64_t columns;
};

struct PackedWeights {
    std::deque<PackedMatrix> matrices;   // as the sources
    std::unique_ptr<PackedCache> cache;  // where they are, or
    std::optional<HugeMemory> memory;
    std::string note;                    // what became of the file, for the log; empty without one
    bool failed = false;                 // a file was refused, or could not be written
};

// Of several processes without a file one packs, and the others wait for its file (packing_lock.h); should it get stuck, they
// pack into memory. `done` is called with each source that is not needed any more. A file that cannot be used or written is left, with a
// note, and the weights are packed into memory. What `progress` throws comes through.
PackedWeights pack_all(const std::vector<PackSource>& sources, const Packing& packing, const std::function<void(const PackSource&)>& done);

}  // namespace tokenloom
