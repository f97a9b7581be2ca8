// AMX int8 on the CPU's own tiles. Not chosen by itself, since nobody has measured yet where it is quicker than AVX-512 VNNI.

#define TOKENLOOM_TILES
#include "system/cpu_features.h"
#include "kernels/amx/kernel_amx.h"

namespace tokenloom {

constinit const Kernels kAmxKernels = make_amx_kernels("amx", may_use_amx_int8, Choice::named);

}  // namespace tokenloom
