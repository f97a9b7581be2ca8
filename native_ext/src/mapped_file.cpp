#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.h"

namespace tokenloom {

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a FIFO by mistake must fail below, not hang here.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        throw ModelError(path + ": cannot open the model file: " + std::strerror(errno));
    }
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        throw ModelError(path + ": not a regular file; a GGUF model file is needed");
    }
    if (info.st_size == 0) {
        ::close(fd);
        throw ModelError(path + ": the file is empty; a GGUF model file is needed");
    }
    size_ = static_cast<size_t>(info.st_size);
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    const int map_errno = errno;
    ::close(fd);
    if (mapped == MAP_FAILED) {
        throw ModelError(path + ": cannot map the file's " + std::to_string(size_) + " bytes: " + std::strerror(map_errno));
    }
    data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
    ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace tokenloom
