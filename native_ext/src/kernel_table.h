// A table of multiplication kernels for one instruction set. Included where the instruction set differs: nothing of the
// standard library in here, whose inline functions might then be taken from there for the rest of the program.

#pragma once

#include "packed_layout.h"

namespace tokenloom {

// Memory that will be read next, which a kernel asks for bit by bit while it computes: a cache line at a time, so that the
// transfers overlap the arithmetic and none waits for another. May be empty.
struct Fetch {
    const uint8_t* begin;
    const uint8_t* end;
};

// Products of a group's rows with `tokens` (1 to kTileTokens) of a tile: out[token * stride + row], float32.
using MultiplyTile = void (*)(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch fetch);

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
