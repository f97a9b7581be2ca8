// How many cores this process may use: the affinity mask, cut by the cgroup CPU quota (whole cores, at least one).

#pragma once

#include <string>

namespace tokenloom {

// `root` as in cgroup.h.
int usable_cores(const std::string& root = "");

}  // namespace tokenloom
