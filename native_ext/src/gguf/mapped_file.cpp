#include "gguf/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "system/errors.h"

namespace tokenloom {

namespace {

bool is_utf8(const std::string& text) {
    for (size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i++]);
        const int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
        if (more < 0) {
            return false;
        }
        for (int k = 0; k < more; ++k, ++i) {
            if (i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
                return false;
            }
        }
    }
    return true;
}

std::string displayed(std::string path) {
    if (!is_utf8(path)) {
        std::replace_if(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
    }
    return path;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(displayed(path)) {
    // O_NONBLOCK: opening a FIFO by mistake must fail below, not hang here.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        throw ModelError(path_ + ": cannot open the model file: " + std::strerror(errno));
    }
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        throw ModelError(path_ + ": not a regular file; a GGUF model file is needed");
    }
    if (info.st_size == 0) {
        ::close(fd);
        throw ModelError(path_ + ": the file is empty; a GGUF model file is needed");
    }
    size_ = static_cast<size_t>(info.st_size);
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int map_errno = errno;
    ::close(fd);
    if (mapped == MAP_FAILED) {
        throw ModelError(path_ + ": cannot map the file's " + std::to_string(size_) + " bytes: " + std::strerror(map_errno));
    }
    data_ = static_cast<const uint8_t*>(mapped);
}

void MappedFile::release(const uint8_t* data, size_t bytes) const {
    // Outward to whole pages: what a neighbour shares with it comes back when touched.
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t begin = static_cast<size_t>(data - data_) / page * page;
    const size_t end = static_cast<size_t>(data - data_) + bytes;
    ::madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);  // a failure costs memory, no more
}

MappedFile::~MappedFile() {
    ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace tokenloom
