// AMX int8 on emulated tiles, so that tests try the kernels on CPUs that have no tiles.

#include "system/cpu_features.h"
#include "kernels/amx/kernel_amx.h"

namespace tokenloom {

constinit const Kernels kEmulatedAmxKernels = make_amx_kernels("amx-emulated", cpu_has_avx512_vnni, Choice::tests);

}  // namespace tokenloom
