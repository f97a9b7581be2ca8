// AVX-512 VNNI: one vector holds a k-group of half a group's rows, one instruction multiplies it with four numbers of a token and adds.
//
// Both halves at a time, so that each of a token's numbers is loaded once for two products; with up to six tokens the
// accumulators fit the 32 registers. What is left to wait for is the two units that multiply.

#include "system/cpu_features.h"
#include "kernels/avx512/kernel_avx512.h"

namespace tokenloom {

const Kernels kVnniKernels = make_kernels<Vnni>("vnni", cpu_has_avx512_vnni);

}  // namespace tokenloom
