// Whether kernels compute on this machine what the portable ones do, found out where a fault ends nothing (child_check.h).

#pragma once

#include "kernels/kernel_table.h"

namespace tokenloom {

// Every format and size of tile, and numbers of many tokens, against the portable kernels: false when any bit differs, or a child
// dies or hangs of them.
bool check_kernels(const Kernels& kernels);

}  // namespace tokenloom
