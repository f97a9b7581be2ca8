#include "system/cgroup.h"

#include <sys/stat.h>

#include <charconv>
#include <fstream>
#include <sstream>

namespace tokenloom {

namespace {

bool is_folder(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::vector<std::string> chain(const std::string& mount, std::string path) {
    std::vector<std::string> folders;
    while (path.size() > 1) {
        if (is_folder(mount + path)) {
            folders.push_back(mount + path);
        }
        path.erase(path.find_last_of('/'));
    }
    if (is_folder(mount)) {
        folders.push_back(mount);
    }
    return folders;
}

}  // namespace

std::vector<Cgroup> cgroups_of(const std::string& controller, const std::string& root) {
    std::vector<Cgroup> out;
    std::ifstream list(root + "/proc/self/cgroup");
    for (std::string line; std::getline(list, line);) {  // hierarchy:controllers:path
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos || line.size() <= second + 1 || line[second + 1] != '/') {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const std::string path = line.substr(second + 1);
        if (controllers.empty()) {
            out.push_back({2, chain(root + "/sys/fs/cgroup", path)});
            continue;
        }
        std::stringstream names(controllers);
        for (std::string name; std::getline(names, name, ',');) {
            if (name == controller) {
                // The mount is named after one controller or after all that share it.
                std::string mount = root + "/sys/fs/cgroup/" + controller;
                if (!is_folder(mount)) {
                    mount = root + "/sys/fs/cgroup/" + controllers;
                }
                out.push_back({1, chain(mount, path)});
            }
        }
    }
    return out;
}

std::optional<std::string> first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) {
        return std::nullopt;
    }
    return line;
}

std::optional<int64_t> number_in(const std::string& path) {
    const auto line = first_line(path);
    int64_t value = 0;
    if (!line || std::from_chars(line->data(), line->data() + line->size(), value).ec != std::errc()) {
        return std::nullopt;
    }
    return value;
}

}  // namespace tokenloom
