// What this CPU can do and its operating system keeps across a switch of threads. Registers that the system does not
// save would be lost, so CPUID alone does not do: XCR0 says which are saved.

#pragma once

namespace tokenloom {

bool cpu_has_avx2();         // with FMA and F16C
bool cpu_has_avx_vnni();     // with all of AVX2's
bool cpu_has_avx512_vnni();  // with AVX-512 F, BW and VL
bool cpu_has_dotprod();      // of ARM

}  // namespace tokenloom
