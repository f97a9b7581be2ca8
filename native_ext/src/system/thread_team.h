// A team of threads that does one phase after another: a phase is a number of items, and whoever has time takes some. Each
// thread begins with a range of its own, so that it finds in its caches what it has made in the phase before if phases count
// their items in the same order; when that is done, it takes from the ends of the others' ranges.
//
// The caller's thread is the team's first and never waits for another one to begin: it takes items until none is left, and
// then waits only for those that others have taken and not finished. A thread that comes late (asleep, or without a core
// because another process has it) finds nothing to do, and has cost nothing. So a forward may have as many phases as it
// likes, and a core that is not there makes it no slower than a team without that thread, save for a thread that loses its
// core within an item.
// Between shifts the others sleep; within one they watch for the next phase, for as long as phases usually take to follow,
// and then sleep as well. What a phase computes must not depend on who does which item.
//
// A process forked from the team's has none of its threads: it must neither use nor destroy the team.
// One thread at a time may call. Everything a body reads of what the caller wrote before run(), and what the caller reads
// afterwards of what bodies wrote, is ordered.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tokenloom {

class ThreadTeam {
public:
    static constexpr int kAnyNumber = 1 << 30;
    static constexpr int kMostItems = (1 << 20) - 1;  // of a phase

    // `threads`: the caller's included, from 1 up. Throws std::system_error when they cannot be had.
    explicit ThreadTeam(int threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int threads() const { return static_cast<int>(others_.size()) + 1; }

    // From construction to destruction `threads` of the team do the phases, 1 to threads(); out of a shift the caller does
    // them alone. The others are woken at once, since that takes them a while.
    class Shift {
    public:
        Shift(ThreadTeam& team, int threads);
        ~Shift();
        Shift(const Shift&) = delete;
        Shift& operator=(const Shift&) = delete;
        // Seconds that the caller has waited for items of others.
        double waited() const { return team_.waited_; }

    private:
        ThreadTeam& team_;
    };

    // One phase: body(first, last, thread) for items `first` to `last` - 1, until each of the `items` has been done once.
    // `thread` is from 0 to threads() - 1, and no two calls at a time have the same. `most` items at once, fewer towards the
    // end: 1 where items differ much. A body must not throw.
    template <typename Body>
    void run(int items, const Body& body, int most = kAnyNumber) {
        const auto call = [](const void* context, int first, int last, int thread) {
            (*static_cast<const Body*>(context))(first, last, thread);
        };
        if (working_ == 1 || items <= 1 || items > kMostItems) {
            if (items > 0) {
                call(&body, 0, items, 0);
            }
            return;
        }
        run_phase(items, most, call, &body);
    }

    // The same within an operation that is called on each of `threads` threads, which a barrier follows. With 1 it is the
    // team's phase.
    template <typename Body>
    void share(int items, int thread, int threads, const Body& body, int most = kAnyNumber) {
        if (threads == 1) {
            run(items, body, most);
            return;
        }
        for (int item = thread; item < items; item += threads) {
            body(item, item + 1, thread);
        }
    }

private:
    using Call = void (*)(const void* context, int first, int last, int thread);

    // Items that nobody has taken, `begin` to `end` - 1. In one word with the phase's number, of which nobody can take from
    // what he saw of an earlier phase. The bits are enough for kMostItems items and for the phases of some ten minutes.
    struct alignas(64) Range {
        std::atomic<uint64_t> untaken{0};
    };
    struct Portion {
        int first;
        int last;
    };

    void run_phase(int items, int most, Call call, const void* context);
    Portion take(Range& range, bool own);
    int take_items(int thread);
    void help(int thread);
    void sleep(int thread, uint32_t seen);
    void wait_for(int finished);
    void wake();
    void dismiss();

    // Written before the ranges, read after taking from one.
    Call call_ = nullptr;
    const void* context_ = nullptr;
    std::vector<Range> ranges_;                 // by thread
    std::atomic<int> most_{1};                  // items of a portion; of the phase before it does no harm
    std::atomic<uint32_t> phase_{0};            // written after the ranges

    alignas(64) std::atomic<int> finished_{0};  // items that others have done of this phase
    std::atomic<bool> caller_sleeps_{false};
    std::atomic<int> sleepers_{0};         // of this shift's threads
    alignas(64) std::atomic<int> working_{1};  // threads of this shift, 1 out of one
    std::atomic<bool> stop_{false};

    double waited_ = 0;

    std::mutex mutex_;
    uint64_t calls_ = 0;            // to wake up; under the mutex
    std::condition_variable work_;  // others wait for it
    std::condition_variable done_;  // the caller does
    std::vector<std::thread> others_;
};

}  // namespace tokenloom
