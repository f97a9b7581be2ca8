// The multiplication kernels, one table of function pointers for each instruction set.
//
// All give the same bits (packed_layout.h says which number each output is), so which one runs is a matter of speed alone:
// of this CPU and what its operating system saves, found out at run time. Each table lives in a translation unit of its
// own, built for its instruction set; nothing else is, and no table may be called before works() has been asked.

#pragma once

#include <span>
#include <string_view>

#include "kernels/kernel_table.h"

namespace tokenloom {

// What was built, the slowest first; some may not work here.
std::span<const Kernels* const> all_kernels();

// Whether CPU and operating system have what these need, and they pass check_kernels(); found out once.
bool works(const Kernels& kernels);

// For "auto" or an empty name the fastest that work and are chosen by themselves; those of that name; null for "ggml", which
// leaves weights to ggml_mul_mat. Throws EngineError for a name that is unknown or does not work here.
const Kernels* choose_kernels(std::string_view name);

// By the environment variable TOKENLOOM_KERNELS: auto, portable, avx2, avxvnni, vnni, amx, neon or ggml.
const Kernels* kernels_of_environment();

}  // namespace tokenloom
