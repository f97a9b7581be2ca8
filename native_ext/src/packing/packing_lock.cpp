#include "packing/packing_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace tokenloom {

namespace {

constexpr auto kBetweenTries = std::chrono::milliseconds(20);

// When the file was touched last; not compared with any clock here.
timespec touched(const struct stat& info) {
#ifdef __APPLE__
    return info.st_mtimespec;
#else
    return info.st_mtim;
#endif
}

}  // namespace

PackingLock::~PackingLock() {
    if (fd_ >= 0) {
        ::unlink(path_.c_str());
        ::close(fd_);
    }
}

PackingLock::Try PackingLock::try_once() {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) {
        return Try::impossible;
    }
    Try outcome = Try::held;
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        outcome = errno == EWOULDBLOCK ? Try::taken : (errno == EINTR ? Try::gone : Try::impossible);
    } else {
        struct stat ours {};
        struct stat named {};
        if (::fstat(fd_, &ours) != 0 || ::stat(path_.c_str(), &named) != 0 || ours.st_dev != named.st_dev || ours.st_ino != named.st_ino) {
            outcome = Try::gone;  // its last holder has removed it
        }
    }
    if (outcome != Try::held) {
        ::close(fd_);
        fd_ = -1;
    }
    return outcome;
}

bool PackingLock::take(double patience, const std::function<void()>& waiting) {
    using Clock = std::chrono::steady_clock;
    timespec last{};
    auto since = Clock::now();
    for (;;) {
        switch (try_once()) {
            case Try::held:
            case Try::impossible:
                getting_on();
                return true;
            case Try::gone:
                continue;
            case Try::taken:
                break;
        }
        struct stat info {};
        if (::stat(path_.c_str(), &info) == 0) {
            const timespec now = touched(info);
            if (now.tv_sec != last.tv_sec || now.tv_nsec != last.tv_nsec) {
                last = now;
                since = Clock::now();
            }
        }
        if (std::chrono::duration<double>(Clock::now() - since).count() > patience) {
            return false;
        }
        waiting();
        std::this_thread::sleep_for(kBetweenTries);
    }
}

void PackingLock::getting_on() const {
    if (fd_ >= 0) {
        ::futimens(fd_, nullptr);
    }
}

}  // namespace tokenloom
