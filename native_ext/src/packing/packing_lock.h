// Who packs, where several processes would: one does, and the others wait for its file.
//
// A lock of the kernel's on a file of its own, so that it is given back whatever its holder dies of. The holder removes the
// file before it lets go; who had waited for a file that is gone takes a new one. Where there are no such locks, or no file
// can be made, everybody has it.

#pragma once

#include <functional>
#include <string>
#include <utility>

namespace tokenloom {

class PackingLock {
public:
    explicit PackingLock(std::string path) : path_(std::move(path)) {}
    // Gives it back.
    ~PackingLock();
    PackingLock(const PackingLock&) = delete;
    PackingLock& operator=(const PackingLock&) = delete;

    // Waits for the lock. False when its holder has not called getting_on() for `patience` seconds. What `waiting` throws,
    // called some times a second, comes through.
    bool take(double patience, const std::function<void()>& waiting);
    // Tells those who wait that this holder is not stuck.
    void getting_on() const;

private:
    enum class Try { held, taken, gone, impossible };
    Try try_once();

    std::string path_;
    int fd_ = -1;
};

}  // namespace tokenloom
