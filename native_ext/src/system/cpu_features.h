// What this CPU can do and its operating system keeps across a switch of threads. Registers that the system does not
// save would be lost, so CPUID alone does not do: XCR0 says which are saved.

#pragma once

namespace tokenloom {

bool cpu_has_avx2();         // with FMA and F16C
bool cpu_has_avx_vnni();     // with all of AVX2's
bool cpu_has_avx512_vnni();  // with AVX-512 F, BW and VL
bool cpu_has_dotprod();      // of ARM

// AMX's int8 products, with all of AVX-512 VNNI's. Linux saves the 8 KiB of AMX's tiles only for processes that ask for it, so this asks,
// once. All threads have the permission then, and processes that are forked afterwards.
bool may_use_amx_int8();

}  // namespace tokenloom
