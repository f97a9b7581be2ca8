// A table of multiplication kernels for one instruction set. Included where the instruction set differs: nothing of the
// standard library in here, whose inline functions might then be taken from there for the rest of the program.

#pragma once

#include "kernels/packed_layout.h"

namespace tokenloom {

// Memory that will be read next, which a kernel asks for bit by bit while it computes: a cache line at a time, so that the
// transfers overlap the arithmetic and none waits for another. May be empty.
struct Fetch {
    const uint8_t* begin;
    const uint8_t* end;
};

// Products of a group's rows with `tokens` (1 to kTileTokens) of a tile: out[token * stride + row], float32.
using MultiplyTile = void (*)(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch fetch);

// From so many tokens on products of several tiles at a time may pay, where a set has them.
constexpr int kManyTokens = 32;

// Products of a group with several tiles of rounded activations, which are put in an order of their own first: once for all
// groups that they are multiplied with.
struct ManyTokens {
    // Memory for `tokens` tokens (kManyTokens or more) of `blocks` blocks, which must begin at a multiple of 64.
    size_t (*bytes)(int tokens, int blocks);
    // Puts a tile of `tile_tokens` there, whose first is the `first` of all `tokens`. To be called for each tile.
    void (*arrange)(const uint8_t* tile, int tile_tokens, int first, int tokens, int blocks, uint8_t* arranged);
    // As MultiplyTile. Null for a format whose tiles are multiplied one by one.
    void (*multiply[kPackedFormats])(const PackedGroup& group, const uint8_t* arranged, int tokens, float* out, size_t stride,
                                     Fetch fetch);
};

// When a set is chosen: by itself where it is the fastest that works, when it is named, or when it is named by a test.
enum class Choice { automatic, named, tests };

struct Kernels {
    const char* name;
    MultiplyTile multiply[kPackedFormats];
    bool (*usable)();  // as CPU and operating system say
    Choice choice = Choice::automatic;
    const ManyTokens* many = nullptr;  // if there are any
};

extern const Kernels kPortableKernels;
#ifdef TOKENLOOM_X86_KERNELS
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;
extern const Kernels kVnniKernels;
extern const Kernels kEmulatedAmxKernels;
#endif
#ifdef TOKENLOOM_AMX_KERNELS
extern const Kernels kAmxKernels;
#endif
#ifdef TOKENLOOM_NEON_KERNELS
extern const Kernels kNeonKernels;
#endif

}  // namespace tokenloom
