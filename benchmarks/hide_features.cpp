// Hides from a program what its CPU has beyond AVX2, so that whatever asks CPUID takes the way of an AVX2 machine.
//
//   c++ -O1 -shared -fPIC hide_features.cpp -o hide_features.so -ldl
//   LD_PRELOAD=./hide_features.so PROGRAM       ends with 77 where the CPU cannot let CPUID fault
//
// Linux can make the instruction fault in a thread and all that it starts (arch_prctl(ARCH_SET_CPUID); x86 from Ivy Bridge and
// Zen 4 on). The fault's handler executes it, clears the bits and goes on behind it. The program's own handlers of SIGSEGV are
// not installed; a fault of another kind ends it. What was decided when the program was compiled stays as it is, and so does what
// the C library chose before this was loaded (how it copies memory).

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace {

using SetAction = int (*)(int, const struct sigaction*, struct sigaction*);
using SetSignal = void (*(*)(int, void (*)(int)))(int);

constexpr int kCannot = 77;
constexpr long kSetCpuid = 0x1012;  // ARCH_SET_CPUID of <asm/prctl.h>

long let_cpuid_work(unsigned long works) { return syscall(SYS_arch_prctl, kSetCpuid, works); }

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void clear(uint32_t& word, std::initializer_list<int> bits) {
    for (const int bit : bits) {
        word &= ~(uint32_t{1} << bit);
    }
}

// As the manuals number them: AVX-512 in all its parts, AVX-VNNI and what followed it, AMX, AVX10.
void hide(uint32_t leaf, uint32_t part, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    if (leaf == 7 && part == 0) {
        clear(b, {16, 17, 21, 26, 27, 28, 30, 31});
        clear(c, {1, 6, 11, 12, 14});
        clear(d, {2, 3, 8, 22, 23, 24, 25});
    } else if (leaf == 7 && part == 1) {
        clear(a, {0, 1, 2, 4, 5, 21, 22, 23});
        clear(d, {4, 5, 8, 10, 19});
    }
}

void on_fault(int, siginfo_t*, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (code[0] != 0x0f || code[1] != 0xa2) {
        struct sigaction fatal {};
        fatal.sa_handler = SIG_DFL;
        next<SetAction>("sigaction")(SIGSEGV, &fatal, nullptr);
        return;  // to fault again
    }
    const auto leaf = static_cast<uint32_t>(registers[REG_RAX]);
    const auto part = static_cast<uint32_t>(registers[REG_RCX]);
    uint32_t a = leaf, b = 0, c = part, d = 0;
    let_cpuid_work(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    let_cpuid_work(0);
    hide(leaf, part, a, b, c, d);
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) void begin() {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    if (next<SetAction>("sigaction")(SIGSEGV, &action, nullptr) != 0 || let_cpuid_work(0) != 0) {
        std::fputs("hide_features: this CPU or system cannot let CPUID fault\n", stderr);
        _exit(kCannot);
    }
}

}  // namespace

// Whoever loads the program's libraries may not take the handler away.
extern "C" int sigaction(int number, const struct sigaction* action, struct sigaction* before) noexcept {
    if (number != SIGSEGV) {
        return next<SetAction>("sigaction")(number, action, before);
    }
    if (before != nullptr) {
        memset(before, 0, sizeof(*before));
    }
    return 0;
}

extern "C" void (*signal(int number, void (*handler)(int)) noexcept)(int) {
    return number == SIGSEGV ? SIG_DFL : next<SetSignal>("signal")(number, handler);
}
