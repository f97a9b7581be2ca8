// Where this process's control groups are, for versions 1 and 2 alike.
//
// `root` stands in front of every path ("" for the real system), so that tests can lay out a tree of their own.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokenloom {

struct Cgroup {
    int version;                       // 1 or 2
    std::vector<std::string> folders;  // this process's own first, then its parents up to the mount; only those that exist
};

// The groups that limit `controller` ("cpu", "memory"). Inside a container the path in /proc/self/cgroup may not exist
// below the mount; then only the mount itself is listed, which is what the container sees as its own group.
std::vector<Cgroup> cgroups_of(const std::string& controller, const std::string& root = "");

// The file's first line, or nothing when it cannot be read.
std::optional<std::string> first_line(const std::string& path);

// A whole number in the file's first line; nothing for "max" or anything else.
std::optional<int64_t> number_in(const std::string& path);

}  // namespace tokenloom
