#include "system/thread_choice.h"

#include <algorithm>
#include <bit>

namespace tokenloom {

ThreadChoice::SizeClass& ThreadChoice::of(int rows) {
    const auto log = static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(rows, 1))) - 1);
    return classes_[std::min(log, classes_.size() - 1)];
}

int ThreadChoice::choose(int rows) {
    SizeClass& c = of(rows);
    if (half_ < 1) {
        return all_;
    }
    const bool may_try = c.on_half || c.disturbance > 0.5;
    if (may_try && ++c.since_try > c.try_after) {
        c.since_try = 0;
        return c.on_half ? all_ : half_;
    }
    return c.on_half ? half_ : all_;
}

void ThreadChoice::report(int rows, int threads, double seconds, double lost) {
    SizeClass& c = of(rows);
    double& known = threads == all_ ? c.all : c.half;
    if (threads == all_) {
        c.disturbance = 0.75 * c.disturbance + (lost > kLost * seconds ? 0.25 : 0.0);
    }
    if (threads == (c.on_half ? half_ : all_)) {
        known = known == 0 ? seconds : 0.75 * known + 0.25 * seconds;
        return;
    }
    known = seconds;  // it was tried: what it took some time ago is no help
    if ((c.half < c.all) == c.on_half) {
        c.try_after = std::min(2 * c.try_after, kMostTryAfter);
    } else {
        c.on_half = !c.on_half;
        c.try_after = c.on_half ? kTryAllAfter : kTryAfter;
    }
}

}  // namespace tokenloom
