// Packed weights in a file, so that the next load maps them instead of packing again, and workers of one machine share them.
//
// The file is little-endian: a header (what model, which layouts, how long), a table with the place and checksum of every
// matrix, and the matrices' bytes as PackedMatrix holds them, each at a multiple of 64. It is written beside its name and
// renamed when it is complete and on the disk, so a reader finds all of it or none, whoever else writes at the same time.
// Every byte is checked when it is opened: another model, another version of the layouts, a cut or a changed byte is refused,
// and means packing again, never other numbers. Like a model file it must be replaced by renaming, not by writing into it.

#pragma once

#include <ggml.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gguf/mapped_file.h"

namespace tokenloom {

// Bytes done and bytes in all. It may throw, which ends what is going on.
using Progress = std::function<void(uint64_t done, uint64_t total)>;

struct PackedShape {
    ggml_type type;
    int64_t rows;
    int64_t columns;
    uint64_t bytes;  // packed
};

// What a file must be of: 64 hex digits (fingerprint.py), and the model's matrices in order.
struct PackedKey {
    std::string fingerprint;
    std::vector<PackedShape> matrices;
    uint64_t bytes() const;
};

class PackedCache {
public:
    // Null when there is no such file, and when it is not what `key` says; then `why` does.
    static std::unique_ptr<PackedCache> open(const std::string& path, const PackedKey& key, const Progress& progress, std::string& why);

    // A matrix of the key's by index, as long as the object lives.
    const uint8_t* matrix(size_t index) const { return file_.data() + offsets_[index]; }

private:
    explicit PackedCache(const std::string& path) : file_(path) {}
    std::string refuse(const PackedKey& key, const Progress& progress);

    MappedFile file_;
    std::vector<uint64_t> offsets_;
};

class PackedCacheWriter {
public:
    // Begins a file in the folder of `path`. This and the others throw EngineError when the file cannot be written.
    PackedCacheWriter(const std::string& path, const PackedKey& key);
    // Leaves nothing behind unless commit() has returned.
    ~PackedCacheWriter();
    PackedCacheWriter(const PackedCacheWriter&) = delete;
    PackedCacheWriter& operator=(const PackedCacheWriter&) = delete;

    // The next matrix of the key's.
    void add(const uint8_t* data);
    // After the last one: the file is on the disk under its name.
    void commit();

private:
    void write(const void* data, size_t bytes, uint64_t at);
    void append(const void* data, size_t bytes);
    void flush();
    [[noreturn]] void fail(const std::string& what) const;
    void remove_abandoned() const;

    std::string path_;
    std::string temporary_;
    int fd_ = -1;
    const PackedKey& key_;
    std::vector<uint64_t> offsets_;
    std::vector<uint64_t> checksums_;
    uint64_t file_bytes_;
    std::vector<uint8_t> pending_;  // what is to be written next,
    uint64_t written_ = 0;          // behind so much
};

}  // namespace tokenloom
