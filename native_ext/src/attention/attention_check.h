// Whether attention kernels compute on this machine what the portable ones do, found out where a fault ends nothing
// (child_check.h).

#pragma once

#include "attention/attention_kernel.h"

namespace tokenloom {

// Both types of cells, one query and many, whole and partly visible pages, head sizes with and without padding, against the
// portable kernels: false when any bit differs, or a child dies or hangs of them.
bool check_attention(const AttentionKernels& kernels);

// Whether these may be used: CPU and operating system have what they need, and they pass the check. Found out once.
bool works(const AttentionKernels& kernels);

}  // namespace tokenloom
