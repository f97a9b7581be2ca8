// What this machine can do at most: int8 products summed into int32, float32 FMAs, reads from L2 and from memory.
//
//   peak all|SET[,SET...] THREADS...    prints a JSON list with one object for each number of threads:
//                      {"threads": 1, "products": {SET: GOPS, ...}, "fma": {WIDTH: GFLOPS, ...}, "l2": GB/s, "memory": GB/s}
//
// SETs are avx512_vnni, avx_vnni and avx2, WIDTHs avx512, avx2 and plain, each where this CPU has it and, of sets, where it is asked
// for. Each figure is the best of several short runs in which all threads begin together and run for the same time; a thread's
// rate in a run is the median of many short spells, so that a spell in which something else had the core does not count.
// Every loop is built for its own instruction set, whatever the compiler takes for the rest.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using Words = uint64_t __attribute__((vector_size(64)));

constexpr auto kTime = std::chrono::milliseconds(60);
constexpr int kRuns = 4;
constexpr int kLanes = 12;  // independent sums: more than latency times throughput anywhere
constexpr int kRounds = 20000;

std::atomic<uint64_t> sink{0};

// So many rounds of a loop, each of `work` multiplications and additions.
struct Loop {
    const char* name;
    bool (*usable)();
    void (*run)(int rounds);
    double work;
};

bool always() { return true; }

// Sums are unrolled wherever they are used, or they stay in memory and every round writes them.
#define TOKENLOOM_FMA(vector_floats, ...)                                             \
    using Lane = float __attribute__((vector_size(vector_floats * 4)));               \
    Lane sums[kLanes], a = {}, b = {};                                                \
    a += 0.5f;                                                                        \
    b += 1.5f;                                                                        \
    __asm__ volatile("" : "+m"(a), "+m"(b));                                          \
    const Lane x = a, y = b;                                                          \
    _Pragma("GCC unroll 12") for (int lane = 0; lane < kLanes; ++lane) {              \
        sums[lane] = x * static_cast<float>(lane); /* all different, or one would do for all */ \
    }                                                                                 \
    for (int i = 0; i < rounds; ++i) {                                                \
        _Pragma("GCC unroll 12") for (auto& sum : sums) {                             \
            sum = sum * x + y; /* contracted into an FMA */                           \
        }                                                                             \
    }                                                                                 \
    _Pragma("GCC unroll 12") for (auto& sum : sums) {                                 \
        sink += static_cast<uint64_t>(sum[0]);                                        \
    }

// In vectors that the instruction set has: of longer ones a compiler makes copies.
#define TOKENLOOM_READ(vector_bytes)                                     \
    using Part = uint64_t __attribute__((vector_size(vector_bytes), may_alias)); \
    const auto* parts = reinterpret_cast<const Part*>(from);             \
    const size_t all = count * (sizeof(Words) / sizeof(Part));           \
    Part sums[8] = {};                                                   \
    for (size_t i = 0; i + 8 <= all; i += 8) {                           \
        _Pragma("GCC unroll 8") for (size_t k = 0; k < 8; ++k) {         \
            sums[k] ^= parts[i + k];                                     \
        }                                                                \
    }                                                                    \
    _Pragma("GCC unroll 8") for (auto& sum : sums) {                     \
        sink += sum[0] + sum[1];                                         \
    }

void fma_plain(int rounds) { TOKENLOOM_FMA(4) }
void read_plain(const Words* from, size_t count) { TOKENLOOM_READ(16) }

#if defined(__x86_64__)

bool cpu_has(unsigned leaf, unsigned part, int word, int bit) {
    unsigned registers[4] = {};
    if (part > 0 && (!__get_cpuid_count(leaf, 0, &registers[0], &registers[1], &registers[2], &registers[3]) || registers[0] < part)) {
        return false;
    }
    return __get_cpuid_count(leaf, part, &registers[0], &registers[1], &registers[2], &registers[3]) != 0 && (registers[word] >> bit & 1) != 0;
}

// The compiler's own test looks at what the system saves as well; newer features it may not know by name.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() { return has_avx2() && __builtin_cpu_supports("avx512f"); }
bool has_avx512_vnni() { return has_avx512() && cpu_has(7, 0, 2, 11); }
bool has_avx_vnni() { return has_avx2() && cpu_has(7, 1, 0, 4); }

__attribute__((target("avx512f,avx512bw"))) void products_avx512_vnni(int rounds) {
    __m512i sums[kLanes], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sum = _mm512_setzero_si512();
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sink += static_cast<uint64_t>(_mm512_reduce_add_epi32(sum));
    }
}

__attribute__((target("avx2"))) void products_avx_vnni(int rounds) {
    __m256i sums[kLanes], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5);
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sum = _mm256_setzero_si256();
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sink += static_cast<uint64_t>(_mm256_extract_epi32(sum, 0));
    }
}

// Pairs of products in int16, of which four fit before they must be widened: no format of weights may widen more seldom, so
// that no kernel can be quicker than this.
constexpr int kSums = 8;
constexpr int kPairs = 4;
__attribute__((target("avx2"))) void products_avx2(int rounds) {
    __m256i sums[kSums], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (auto& sum : sums) {
        sum = _mm256_setzero_si256();
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
        for (auto& sum : sums) {
            __m256i pairs;
            __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(a), "x"(b));
#pragma GCC unroll 4
            for (int pair = 1; pair < kPairs; ++pair) {
                __m256i more;
                __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(more) : "x"(a), "x"(b));
                pairs = _mm256_add_epi16(pairs, more);
            }
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
    }
#pragma GCC unroll 8
    for (auto& sum : sums) {
        sink += static_cast<uint64_t>(_mm256_extract_epi32(sum, 0));
    }
}

__attribute__((target("avx2,fma"))) void fma_avx2(int rounds) { TOKENLOOM_FMA(8) }
__attribute__((target("avx512f"))) void fma_avx512(int rounds) { TOKENLOOM_FMA(16) }
__attribute__((target("avx2"))) void read_avx2(const Words* from, size_t count) { TOKENLOOM_READ(32) }
__attribute__((target("avx512f"))) void read_avx512(const Words* from, size_t count) { TOKENLOOM_READ(64) }

constexpr Loop kProducts[] = {
    {"avx512_vnni", has_avx512_vnni, products_avx512_vnni, kLanes * 64 * 2.0},
    {"avx_vnni", has_avx_vnni, products_avx_vnni, kLanes * 32 * 2.0},
    {"avx2", has_avx2, products_avx2, kSums * kPairs * 32 * 2.0},
};
constexpr Loop kFmas[] = {
    {"avx512", has_avx512, fma_avx512, kLanes * 16 * 2.0},
    {"avx2", has_avx2, fma_avx2, kLanes * 8 * 2.0},
    {"plain", always, fma_plain, kLanes * 4 * 2.0},
};

void read(const Words* from, size_t count) {
    static const auto widest = has_avx512() ? read_avx512 : has_avx2() ? read_avx2 : read_plain;
    widest(from, count);
}

#else

void read(const Words* from, size_t count) { read_plain(from, count); }

constexpr Loop kFmas[] = {{"plain", always, fma_plain, kLanes * 4 * 2.0}};

#endif

// Units of work a second of all threads together, the best of several runs; `work` does some and says how much.
double rate(int threads, const std::function<double(int)>& work) {
    double best = 0;
    for (int run = 0; run < kRuns; ++run) {
        std::atomic<int> waiting{threads};
        std::vector<double> rates(static_cast<size_t>(threads));
        const auto one = [&](int thread) {
            work(thread);
            --waiting;
            while (waiting > 0) {
                std::this_thread::yield();
            }
            std::vector<double> quanta;
            const auto start = Clock::now();
            for (auto now = start; now - start < kTime;) {
                const double done = work(thread);
                const auto after = Clock::now();
                quanta.push_back(done / std::chrono::duration<double>(after - now).count());
                now = after;
            }
            std::nth_element(quanta.begin(), quanta.begin() + static_cast<std::ptrdiff_t>(quanta.size() / 2), quanta.end());
            rates[static_cast<size_t>(thread)] = quanta[quanta.size() / 2];
        };
        std::vector<std::thread> others;
        for (int thread = 1; thread < threads; ++thread) {
            others.emplace_back(one, thread);
        }
        one(0);
        for (auto& other : others) {
            other.join();
        }
        double sum = 0;
        for (const double each : rates) {
            sum += each;
        }
        best = sum > best ? sum : best;
    }
    return best;
}

// Each thread reads its own `bytes` over and over, in spells of at most 2 MiB.
double read_rate(int threads, size_t bytes) {
    const size_t count = bytes / sizeof(Words);
    const size_t spell = std::min(count, (size_t{2} << 20) / sizeof(Words));
    std::vector<size_t> at(static_cast<size_t>(threads), 0);
    std::vector<Words*> buffers;
    for (int thread = 0; thread < threads; ++thread) {
        auto* buffer = static_cast<Words*>(std::aligned_alloc(64, bytes));
        if (buffer == nullptr) {
            std::fprintf(stderr, "no memory for %zu bytes\n", bytes);
            std::exit(1);
        }
        for (size_t i = 0; i < count; ++i) {
            buffer[i] = Words{} + i;
        }
        buffers.push_back(buffer);
    }
    const double found = rate(threads, [&](int thread) {
        size_t& from = at[static_cast<size_t>(thread)];
        read(buffers[static_cast<size_t>(thread)] + from, spell);
        from = from + 2 * spell <= count ? from + spell : 0;
        return static_cast<double>(spell * sizeof(Words));
    });
    for (Words* buffer : buffers) {
        std::free(buffer);
    }
    return found;
}

// `"name": billions a second, ...` of those that this CPU has and `wanted` names.
template <typename Loops>
std::string rates(const Loops& loops, int threads, const std::string& wanted) {
    std::string out;
    for (const Loop& loop : loops) {
        if (loop.usable() && (wanted == "all" || ("," + wanted + ",").find("," + std::string(loop.name) + ",") != std::string::npos)) {
            const double found = rate(threads, [&](int) { loop.run(kRounds); return loop.work * kRounds; });
            char text[80];
            std::snprintf(text, sizeof text, "%s\"%s\": %.1f", out.empty() ? "" : ", ", loop.name, found / 1e9);
            out += text;
        }
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: peak all|SET[,SET...] THREADS...\n");
        return 2;
    }
    std::printf("[");
    for (int i = 2; i < argc; ++i) {
        const int threads = std::atoi(argv[i]);
        if (threads < 1 || threads > 1024) {
            std::fprintf(stderr, "threads must be a number from 1 to 1024, not '%s'\n", argv[i]);
            return 2;
        }
#if defined(__x86_64__)
        const std::string products = rates(kProducts, threads, argv[1]);
#else
        const std::string products;
#endif
        const std::string fmas = rates(kFmas, threads, "all");
        const double l2 = read_rate(threads, size_t{384} << 10);
        const double memory = read_rate(threads, size_t{192} << 20);
        std::printf("%s{\"threads\": %d, \"products\": {%s}, \"fma\": {%s}, \"l2\": %.1f, \"memory\": %.2f}", i > 2 ? ", " : "", threads,
                    products.c_str(), fmas.c_str(), l2 / 1e9, memory / 1e9);
    }
    std::printf("]\n");
    return 0;
}
