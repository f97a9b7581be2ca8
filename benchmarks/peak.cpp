// What this machine can do at most: int8 products summed into int32, float32 FMAs, reads from L2 and from memory.
//
//   peak THREADS...    prints a JSON list with one object for each number of threads:
//                      {"threads": 1, "vnni": GOPS, "fma": GFLOPS, "l2": GB/s, "memory": GB/s}
//
// Each figure is the best of several short runs in which all threads begin together and run for the same time; a thread's
// rate in a run is the median of many short spells, so that a spell in which something else had the core does not count. Built by
// roofline.py with -march=native, so that each loop uses the widest instruction there is.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using Words = uint64_t __attribute__((vector_size(64)));

constexpr auto kTime = std::chrono::milliseconds(80);
constexpr int kRuns = 5;
constexpr int kLanes = 12;  // independent sums: more than latency times throughput anywhere

std::atomic<uint64_t> sink{0};

// Multiplications and additions of one round of int8 products.
#if defined(__AVX512VNNI__)
constexpr double kProducts = kLanes * 64 * 2.0;
void products(int rounds) {
    __m512i sums[kLanes], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sum = _mm512_setzero_si512();
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {  // unrolled too, or the sums stay in memory and every round writes them
        sink += static_cast<uint64_t>(_mm512_reduce_add_epi32(sum));
    }
}
#elif defined(__AVX2__)
constexpr double kProducts = kLanes * 32 * 2.0;
void products(int rounds) {
    __m256i sums[kLanes], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 12
    for (auto& sum : sums) {
        sum = _mm256_setzero_si256();
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
#if defined(__AVXVNNI__)
            asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
            static_cast<void>(ones);
#else
            __m256i pairs;
            asm volatile("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(a), "x"(b));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
#endif
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {  // unrolled too, or the sums stay in memory and every round writes them
        sink += static_cast<uint64_t>(_mm256_extract_epi32(sum, 0));
    }
}
#else
constexpr double kProducts = 0;
void products(int rounds) { sink += static_cast<uint64_t>(rounds); }
#endif

#if defined(__AVX512F__)
constexpr int kFloats = 16;
#else
constexpr int kFloats = 8;
#endif
using Lane = float __attribute__((vector_size(kFloats * 4)));

void fused(int rounds) {
    Lane sums[kLanes], a = {}, b = {};
    a += 0.5f;
    b += 1.5f;
    asm volatile("" : "+m"(a), "+m"(b));
    const Lane x = a, y = b;
#pragma GCC unroll 12
    for (int lane = 0; lane < kLanes; ++lane) {
        sums[lane] = x * static_cast<float>(lane);  // all different, or one would do for all
    }
    for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            sum = sum * x + y;  // contracted into an FMA
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {  // unrolled too, or the sums stay in memory and every round writes them
        sink += static_cast<uint64_t>(sum[0]);
    }
}

void read(const Words* from, size_t count) {
    Words sums[8] = {};
    for (size_t i = 0; i + 8 <= count; i += 8) {
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; ++k) {
            sums[k] ^= from[i + k];
        }
    }
#pragma GCC unroll 12
    for (auto& sum : sums) {  // unrolled too, or the sums stay in memory and every round writes them
        sink += sum[0] + sum[7];
    }
}

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

}  // namespace

int main(int argc, char** argv) {
    std::printf("[");
    for (int i = 1; i < argc; ++i) {
        const int threads = std::atoi(argv[i]);
        if (threads < 1 || threads > 1024) {
            std::fprintf(stderr, "threads must be a number from 1 to 1024, not '%s'\n", argv[i]);
            return 2;
        }
        constexpr int kRounds = 20000;
        const double vnni = rate(threads, [](int) { products(kRounds); return kProducts * kRounds; });
        const double fma = rate(threads, [](int) { fused(kRounds); return kLanes * kFloats * 2.0 * kRounds; });
        const double l2 = read_rate(threads, size_t{384} << 10);
        const double memory = read_rate(threads, size_t{192} << 20);
        std::printf("%s{\"threads\": %d, \"vnni\": %.1f, \"fma\": %.1f, \"l2\": %.1f, \"memory\": %.2f}", i > 1 ? ", " : "", threads,
                    vnni / 1e9, fma / 1e9, l2 / 1e9, memory / 1e9);
    }
    std::printf("]\n");
    return 0;
}
