#include "thread_choice.h"

#include <algorithm>
#include <bit>

namespace tokenloom {

ThreadChoice::SizeClass& ThreadChoice::of(int rows) {
    const auto log = static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(rows, 1))) - 1);
    return classes_[std::min(log, classes_.size() - 1)];
}

int ThreadChoice::choose(int rows) {
    SizeClass& c = of(rows);
    if (half_ < 1 || !c.disturbed) {
        return all_;
    }
    if (c.half == 0) {
        return half_;
    }
    const bool half_is_faster = c.half < c.all;
    if (++c.since_try >= kTryEvery) {
        c.since_try = 0;
        return half_is_faster ? all_ : half_;
    }
    return half_is_faster ? half_ : all_;
}

void ThreadChoice::report(int rows, int threads, double wall, double cpu) {
    SizeClass& c = of(rows);
    double& smoothed = threads == all_ ? c.all : c.half;
    smoothed = smoothed == 0 ? wall : 0.75 * smoothed + 0.25 * wall;
    if (threads != all_) {
        return;
    }
    const bool busy = cpu < kBusy * wall * all_;
    const bool slow = c.best > 0 && wall > kSlow * c.best;
    c.best = c.best == 0 ? wall : std::min(wall, 1.01 * c.best);
    if (busy || slow) {
        c.disturbed = true;
    } else if (c.disturbed) {
        c.disturbed = false;
        c.all = wall;
        c.half = 0;
        c.since_try = 0;
    }
}

}  // namespace tokenloom
