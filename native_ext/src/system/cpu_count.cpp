#include "system/cpu_count.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <sstream>
#include <thread>

#include "system/cgroup.h"

namespace tokenloom {

namespace {

int affinity_cores() {
#ifdef __linux__
    // The mask may be wider than cpu_set_t on very large machines: grow it until it fits.
    for (int size = 1024; size <= 1 << 20; size *= 2) {
        cpu_set_t* set = CPU_ALLOC(size);
        const size_t bytes = CPU_ALLOC_SIZE(size);
        const bool known = set != nullptr && sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) {
            return count;
        }
    }
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Whole cores that the quota in one group's folder leaves, or 0 when it sets none.
int quota_cores(int version, const std::string& folder) {
    int64_t quota = -1;
    int64_t period = 0;
    if (version == 2) {
        std::stringstream line(first_line(folder + "/cpu.max").value_or(""));
        if (!(line >> quota >> period)) {  // "max 100000" sets no quota
            return 0;
        }
    } else {
        quota = number_in(folder + "/cpu.cfs_quota_us").value_or(-1);
        period = number_in(folder + "/cpu.cfs_period_us").value_or(0);
    }
    if (quota <= 0 || period <= 0) {
        return 0;
    }
    return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

}  // namespace

int usable_cores(const std::string& root) {
    int cores = affinity_cores();
    for (const Cgroup& group : cgroups_of("cpu", root)) {
        for (const std::string& folder : group.folders) {
            if (const int quota = quota_cores(group.version, folder); quota > 0) {
                cores = std::min(cores, quota);
            }
        }
    }
    return cores;
}

}  // namespace tokenloom
