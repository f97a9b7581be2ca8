#include "system/cpu_features.h"

#if defined(__x86_64__) || defined(_M_X64)

#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
constexpr int kTileData = 18;    // bit of AMX's tiles in XCR0
constexpr uint64_t kTiles = uint64_t{1} << kTileData | uint64_t{1} << 17;  // and their configuration

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

bool may_use_amx_int8() {
#ifdef __linux__
    static const bool may = [] {
        const Registers seven = cpuid(7);
        constexpr int kGetPermission = 0x1022;  // ARCH_GET_XCOMP_PERM and ARCH_REQ_XCOMP_PERM of <asm/prctl.h>, from Linux 5.16 on
        constexpr int kAskPermission = 0x1023;
        uint64_t permitted = 0;
        return cpu_has_avx512_vnni() && (saved_state() & kTiles) == kTiles && bit(seven.d, 24) && bit(seven.d, 25) &&
               syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0 && syscall(SYS_arch_prctl, kGetPermission, &permitted) == 0 &&
               (permitted >> kTileData & 1) != 0;
    }();
    return may;
#else
    return false;
#endif
}

}  // namespace tokenloom

#else

namespace tokenloom {

bool cpu_has_avx2() { return false; }
bool cpu_has_avx_vnni() { return false; }
bool cpu_has_avx512_vnni() { return false; }
bool may_use_amx_int8() { return false; }

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
