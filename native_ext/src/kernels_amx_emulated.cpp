// AMX int8 on emulated tiles, so that tests try the kernels on CPUs that have no tiles.

#include "cpu_features.h"
#include "kernel_amx.h"

namespace tokenloom {

constinit const Kernels kEmulatedAmxKernels = make_amx_kernels("amx-emulated", cpu_has_avx512_vnni, Choice::tests);

}  // namespace tokenloom
