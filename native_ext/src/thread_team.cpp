#include "thread_team.h"

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
constexpr int kPortions = 4;

// What a waiting thread does that shares its core with another, or its bus.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int untaken(uint64_t ticket) { return static_cast<int>(ticket & 0xffffffff); }

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

ThreadTeam::ThreadTeam(int threads) {
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
    items_ = items;
    most_.store(most, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    ticket_ = uint64_t{++phase_} << 32 | static_cast<uint32_t>(items);
    const int own = take_items(0);
    if (own < items) {
        wait_for(items - own);
    }
}

// Takes items of the phase while there are any: large portions first, so that few are drawn, and small ones towards the
// end, so that all finish at about the same time. Who has gone to sleep is woken for a phase that takes long only: where
// cores are taken, whoever is woken may first take this one.
int ThreadTeam::take_items(int thread) {
    int done = 0;
    uint64_t ticket = ticket_;
    const auto late = thread == 0 && sleepers_ > 0 ? Clock::now() + kWatch : Clock::time_point::max();
    while (untaken(ticket) > 0) {
        const int left = untaken(ticket);
        const int portion = std::clamp(left / (kPortions * threads()), 1, most_.load(std::memory_order_relaxed));
        if (!ticket_.compare_exchange_weak(ticket, ticket - static_cast<uint32_t>(portion))) {
            continue;
        }
        const int first = items_ - left;
        call_(context_, first, first + portion, thread);
        done += portion;
        if (thread == 0 && sleepers_ > 0 && Clock::now() > late) {
            wake();
        }
        ticket = ticket_;
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
    while (!stop_) {
        if (const int done = thread < working_ ? take_items(thread) : 0; done > 0) {
            finished_ += done;
            if (caller_sleeps_) {
                { const std::lock_guard lock(mutex_); }  // it has looked at finished_ before, and waits, or will look after
                done_.notify_one();
            }
            continue;
        }
        const auto called = [&] { return stop_ || thread >= working_ || untaken(ticket_) > 0; };
        if (thread >= working_ || !watch_for(called)) {
            sleep(thread);
        }
    }
}

// Until a call, unless there is work by now.
void ThreadTeam::sleep(int thread) {
    std::unique_lock lock(mutex_);
    if (thread < working_) {
        ++sleepers_;
        if (untaken(ticket_) > 0) {
            --sleepers_;
            return;
        }
    }
    const uint64_t heard = calls_;
    work_.wait(lock, [&] { return stop_ || (calls_ != heard && thread < working_); });
}

}  // namespace tokenloom
