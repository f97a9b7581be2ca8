#include "system/thread_team.h"

#include <algorithm>
#include <chrono>
#include <string>

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
#include <immintrin.h>
#endif

#ifdef __linux__
#include <pthread.h>
#endif

namespace tokenloom {

namespace {

using Clock = std::chrono::steady_clock;

// Longer than phases take to follow each other, and much shorter than a scheduler's time slice.
constexpr auto kWatch = std::chrono::microseconds(100);
constexpr auto kSpin = std::chrono::microseconds(10);
constexpr int kLooks = 32;  // between two looks at the clock
constexpr int kItemBits = 20;

// What a waiting thread does that shares its core with another, or its bus.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;

uint64_t packed(uint64_t phase, int begin, int end) {
    return phase << (2 * kItemBits) | static_cast<uint64_t>(begin) << kItemBits | static_cast<uint64_t>(end);
}

// Looks until `there` is true, for kWatch at most. Says whether it became true. Soon lets others go first: what is waited
// for may itself wait for this core.
template <typename Condition>
bool watch_for(const Condition& there) {
    const auto start = Clock::now();
    for (auto now = start; now < start + kWatch; now = Clock::now()) {
        for (int i = 0; i < kLooks; ++i) {
            if (there()) {
                return true;
            }
            relax();
        }
        if (now > start + kSpin) {
            std::this_thread::yield();
        }
    }
    return false;
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) : ranges_(static_cast<size_t>(threads)) {
    try {
        for (int thread = 1; thread < threads; ++thread) {
            others_.emplace_back([this, thread] { help(thread); });
        }
    } catch (...) {
        dismiss();
        throw;
    }
}

ThreadTeam::~ThreadTeam() { dismiss(); }

void ThreadTeam::dismiss() {
    stop_ = true;
    wake();
    for (std::thread& other : others_) {
        other.join();
    }
}

ThreadTeam::Shift::Shift(ThreadTeam& team, int threads) : team_(team) {
    team_.waited_ = 0;
    team_.working_ = std::clamp(threads, 1, team_.threads());
    if (team_.working_ > 1) {
        team_.wake();
    }
}

ThreadTeam::Shift::~Shift() { team_.working_ = 1; }

void ThreadTeam::wake() {
    {
        const std::lock_guard lock(mutex_);
        sleepers_ = 0;
        ++calls_;
    }
    work_.notify_all();
}

void ThreadTeam::run_phase(int items, int most, Call call, const void* context) {
    call_ = call;
    context_ = context;
    most_.store(most, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    const uint32_t phase = phase_.load(std::memory_order_relaxed) + 1;
    const int working = working_;
    for (int thread = 0; thread < threads(); ++thread) {
        const auto cut = [&](int i) { return static_cast<int>(int64_t{items} * std::min(i, working) / working); };
        ranges_[static_cast<size_t>(thread)].untaken.store(packed(phase, cut(thread), cut(thread + 1)), std::memory_order_release);
    }
    phase_ = phase;
    const int own = take_items(0);
    if (own < items) {
        wait_for(items - own);
    }
}

// A fourth of what is left from the beginning of one's own range, half of it from the end of another's; nothing if none is left.
ThreadTeam::Portion ThreadTeam::take(Range& range, bool own) {
    uint64_t seen = range.untaken.load(std::memory_order_acquire);
    for (;;) {
        const auto begin = static_cast<int>(seen >> kItemBits & kItemMask);
        const auto end = static_cast<int>(seen & kItemMask);
        if (begin == end) {
            return {0, 0};
        }
        const int portion = std::clamp((end - begin) / (own ? 4 : 2), 1, most_.load(std::memory_order_relaxed));
        const int middle = own ? begin + portion : end - portion;
        const uint64_t rest = packed(seen >> (2 * kItemBits), own ? middle : begin, own ? end : middle);
        if (range.untaken.compare_exchange_weak(seen, rest, std::memory_order_acq_rel, std::memory_order_acquire)) {
            return own ? Portion{begin, middle} : Portion{middle, end};
        }
    }
}

// Takes items of the phase while there are any. Who has gone to sleep is woken for a phase that takes long only: where cores
// are taken, whoever is woken may first take this one.
int ThreadTeam::take_items(int thread) {
    int done = 0;
    const auto late = thread == 0 && sleepers_ > 0 ? Clock::now() + kWatch : Clock::time_point::max();
    for (int i = 0; i < threads();) {
        const Portion portion = take(ranges_[static_cast<size_t>((thread + i) % threads())], i == 0);
        if (portion.first == portion.last) {
            ++i;
            continue;
        }
        call_(context_, portion.first, portion.last, thread);
        done += portion.last - portion.first;
        if (thread == 0 && sleepers_ > 0 && Clock::now() > late) {
            wake();
        }
    }
    return done;
}

void ThreadTeam::wait_for(int finished) {
    const auto there = [&] { return finished_ == finished; };
    if (there()) {
        return;
    }
    const auto start = Clock::now();
    if (!watch_for(there)) {
        std::unique_lock lock(mutex_);
        caller_sleeps_ = true;
        done_.wait(lock, there);
        caller_sleeps_ = false;
    }
    waited_ += std::chrono::duration<double>(Clock::now() - start).count();
}

void ThreadTeam::help(int thread) {
#ifdef __linux__
    pthread_setname_np(pthread_self(), ("forward-" + std::to_string(thread)).c_str());
#endif
    uint32_t seen = 0;
    while (!stop_) {
        const auto called = [&] { return stop_ || thread >= working_ || phase_ != seen; };
        if (thread >= working_ || !watch_for(called)) {
            sleep(thread, seen);
            continue;
        }
        seen = phase_;
        if (const int done = thread < working_ ? take_items(thread) : 0; done > 0) {
            finished_ += done;
            if (caller_sleeps_) {
                { const std::lock_guard lock(mutex_); }  // it has looked at finished_ before, and waits, or will look after
                done_.notify_one();
            }
        }
    }
}

// Until a call, unless there is another phase by now than the one that was seen last.
void ThreadTeam::sleep(int thread, uint32_t seen) {
    std::unique_lock lock(mutex_);
    if (thread < working_) {
        ++sleepers_;
        if (phase_ != seen) {
            --sleepers_;
            return;
        }
    }
    const uint64_t heard = calls_;
    work_.wait(lock, [&] { return stop_ || (calls_ != heard && thread < working_); });
}

}  // namespace tokenloom
