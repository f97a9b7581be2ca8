// How many of its threads the next forward uses, when others compete for the cores.
//
// The threads of a team (thread_team.h) need not wait for one that has no core, unless it lost it within an item; ggml's own
// (forward.h) wait for each other at every node. Where other processes take turns on the cores, a forward may then be slower
// on all threads than on some. Their number changes no bit of the result, so it may be chosen by the clock.
//
// The rule, for each size of batch apart: all threads, until forwards are disturbed (they lost more than 15 % of their time;
// three in a row, or most of the last ones). Then half of them are tried, once; whichever was faster stays. The other one is
// tried again after 16 forwards, and after twice as many each time it was the slower one again, up to 256. All threads are
// first tried again after 4: what disturbed them may have been over before half of them were tried.
// Integers and seconds in, an integer out: no clock and no threads in here.

#pragma once

#include <array>

namespace tokenloom {

class ThreadChoice {
public:
    explicit ThreadChoice(int threads) : all_(threads), half_(threads / 2) {}

    // Threads for a batch of so many rows.
    int choose(int rows);
    // What the forward then took: seconds, and how many of these its threads could not work.
    void report(int rows, int threads, double seconds, double lost);

private:
    static constexpr double kLost = 0.15;
    static constexpr int kTryAfter = 16;
    static constexpr int kTryAllAfter = 4;
    static constexpr int kMostTryAfter = 256;

    struct SizeClass {
        bool on_half = false;
        double disturbance = 0;  // share of forwards on all threads that were disturbed, lately
        double all = 0;          // smoothed seconds on all threads, 0: not known
        double half = 0;
        int since_try = kTryAfter;  // forwards since the other number was tried
        int try_after = kTryAfter;
    };

    SizeClass& of(int rows);

    int all_;
    int half_;
    std::array<SizeClass, 24> classes_{};  // by the logarithm of the rows
};

}  // namespace tokenloom
