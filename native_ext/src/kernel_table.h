// A table of multiplication kernels for one instruction set. Included where the instruction set differs: nothing of the
// standard library in here, whose inline functions might then be taken from there for the rest of the program.

#pragma once

#include "packed_layout.h"

namespace tokenloom {

// Products of the rows of `groups` groups, from `first` on, with `tokens` (1 to kTileTokens) of a tile:
// out[token * stride + row], float32.
using MultiplyTile = void (*)(const PackedGroup& first, int groups, const uint8_t* tile, int tokens, float* out, size_t stride);

// With up to so many tokens kernels of rounded formats fetch for themselves what comes next in memory.
constexpr int kFewTokens = 2;

struct Kernels {
    const char* name;
    MultiplyTile multiply[kPackedFormats];
    bool (*usable)();  // as CPU and operating system say
};

extern const Kernels kPortableKernels;
#ifdef TOKENLOOM_X86_KERNELS
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kVnniKernels;
#endif
#ifdef TOKENLOOM_NEON_KERNELS
extern const Kernels kNeonKernels;
#endif

}  // namespace tokenloom
