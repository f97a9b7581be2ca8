#include "cpu_features.h"

#if defined(__x86_64__) || defined(_M_X64)

#include <cpuid.h>

#include <cstdint>

namespace tokenloom {

namespace {

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned part = 0) {
    Registers r;
    __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);  // leaves zeros for a leaf that the CPU lacks
    return r;
}

bool bit(unsigned word, int n) { return ((word >> n) & 1) != 0; }

// XCR0, 0 where it cannot be read.
uint64_t saved_state() {
    if (!bit(cpuid(1).c, 27)) {  // OSXSAVE
        return 0;
    }
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}

constexpr uint64_t kYmm = 0x06;  // SSE and AVX
constexpr uint64_t kZmm = 0xe6;  // these, mask registers, and both parts of AVX-512's

}  // namespace

bool cpu_has_avx2() {
    const Registers one = cpuid(1);
    return (saved_state() & kYmm) == kYmm && bit(one.c, 12) && bit(one.c, 28) && bit(one.c, 29) && bit(cpuid(7).b, 5);
}

bool cpu_has_avx_vnni() {
    // The second part of leaf 7 is there where the first says so; elsewhere it might be anything.
    return cpu_has_avx2() && cpuid(7).a >= 1 && bit(cpuid(7, 1).a, 4);
}

bool cpu_has_avx512_vnni() {
    const Registers seven = cpuid(7);
    return cpu_has_avx2() && (saved_state() & kZmm) == kZmm && bit(seven.b, 16) && bit(seven.b, 30) && bit(seven.b, 31) &&
           bit(seven.c, 11);
}

}  // namespace tokenloom

#else

namespace tokenloom {

bool cpu_has_avx2() { return false; }
bool cpu_has_avx_vnni() { return false; }
bool cpu_has_avx512_vnni() { return false; }

}  // namespace tokenloom

#endif

#if defined(__aarch64__) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

bool tokenloom::cpu_has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

#else

bool tokenloom::cpu_has_dotprod() {
#if defined(__aarch64__) && defined(__APPLE__)
    return true;  // all of them
#else
    return false;
#endif
}

#endif
