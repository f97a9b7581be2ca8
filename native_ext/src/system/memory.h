// How many more bytes this process may use: the machine's available memory, cut by the cgroup memory limits.
//
// Memory that only caches files counts as free, since the kernel gives it up when asked.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokenloom {

// Nothing when the system does not say. `root` as in cgroup.h.
std::optional<uint64_t> available_memory(const std::string& root = "");

}  // namespace tokenloom
