// How many of its threads the next forward uses, when others compete for the cores.
//
// ggml's threads wait for each other by spinning, several hundred times a forward. On cores of their own that is the
// fastest way; where another process takes one of them, each wait may last until the scheduler comes round, and a forward
// that is cheap enough takes ten times as long on two threads as on one. The number of threads changes no bit of the
// result (attention.h, forward.h), so it may be chosen by the clock.
//
// The rule: all threads, until a forward was disturbed (its threads got under 80 % of their cores, or it took half as
// long again as the best lately). From then on, whichever of all and half has been faster for batches of that size, the
// other tried again every 16th time, until a forward on all threads is undisturbed.
// Integers and seconds in, an integer out: no clock and no threads in here.

#pragma once

#include <array>

namespace tokenloom {

class ThreadChoice {
public:
    explicit ThreadChoice(int threads) : all_(threads), half_(threads / 2) {}

    // Threads for a batch of so many rows.
    int choose(int rows);
    // What the forward then took: seconds on the clock, and seconds of CPU of all threads together.
    void report(int rows, int threads, double wall, double cpu);

private:
    struct SizeClass {
        bool disturbed = false;
        double all = 0;    // smoothed seconds on all threads, 0: not known
        double half = 0;
        double best = 0;   // of all, forgotten by 1 % a forward
        int since_try = 0; // forwards since the slower one was tried
    };

    static constexpr double kBusy = 0.8;
    static constexpr double kSlow = 1.5;
    static constexpr int kTryEvery = 16;

    SizeClass& of(int rows);

    int all_;
    int half_;
    std::array<SizeClass, 24> classes_{};  // by the logarithm of the rows
};

}  // namespace tokenloom
