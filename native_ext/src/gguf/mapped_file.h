// A file mapped read-only into memory for as long as the object lives.
//
// Nothing is read ahead and nothing is populated: pages come in when they are first touched, and the kernel may drop and
// re-read them. A file that somebody shortens while it is mapped raises SIGBUS on touch; there is no portable defence, so
// model files must be replaced by renaming, not by writing in place.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tokenloom {

class MappedFile {
public:
    // Throws ModelError when the file cannot be opened, is not a regular file or is empty.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    // For messages: the path given, with '?' for bytes that are not ASCII when they are not UTF-8 either.
    const std::string& path() const { return path_; }
    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

    // Gives back the memory of so many bytes at `data`, which are not needed soon: a later touch reads them again.
    void release(const uint8_t* data, size_t bytes) const;

private:
    std::string path_;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace tokenloom
