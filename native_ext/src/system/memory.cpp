#include "system/memory.h"

#include <algorithm>
#include <fstream>

#include "system/cgroup.h"

namespace tokenloom {

namespace {

// The value after `name` in a file of "name value" lines.
int64_t field(const std::string& path, const std::string& name) {
    std::ifstream file(path);
    std::string key;
    int64_t value = 0;
    for (std::string rest; file >> key >> value; std::getline(file, rest)) {
        if (key == name) {
            return value;
        }
    }
    return -1;
}

std::optional<uint64_t> left_in_group(int version, const std::string& folder) {
    const auto limit = number_in(folder + (version == 2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = number_in(folder + (version == 2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used) {
        return std::nullopt;
    }
    const std::string prefix = version == 2 ? "" : "total_";
    int64_t cache = 0;
    for (const char* name : {"inactive_file", "active_file"}) {
        cache += std::max<int64_t>(0, field(folder + "/memory.stat", prefix + name));
    }
    return static_cast<uint64_t>(std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cache)));
}

}  // namespace

std::optional<uint64_t> available_memory(const std::string& root) {
    std::optional<uint64_t> available;
    const auto cut = [&](uint64_t bytes) { available = std::min(available.value_or(bytes), bytes); };
    if (const int64_t kib = field(root + "/proc/meminfo", "MemAvailable:"); kib >= 0) {
        cut(static_cast<uint64_t>(kib) * 1024);
    }
    for (const Cgroup& group : cgroups_of("memory", root)) {
        for (const std::string& folder : group.folders) {
            if (const auto left = left_in_group(group.version, folder)) {
                cut(*left);
            }
        }
    }
    return available;
}

}  // namespace tokenloom
