// Whether kernels compute on this machine what the portable ones do.
//
// CPUID can promise what a hypervisor then traps, and a compiler or a CPU can have a fault. So before kernels are chosen they
// multiply something small in a child process, where an illegal instruction ends nothing else.

#pragma once

#include "kernel_table.h"

namespace tokenloom {

// Every format and size of tile against the portable kernels, in a child process: false when any bit differs, or the child
// dies or hangs. Where no child can be had, true: then CPUID's word has to do.
bool check_kernels(const Kernels& kernels);

}  // namespace tokenloom
