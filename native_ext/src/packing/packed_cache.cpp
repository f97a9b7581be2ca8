#include "packing/packed_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>

#include "system/errors.h"
#include "system/huge_memory.h"
#include "kernels/packed_layout.h"

namespace tokenloom {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[16] = {'t', 'o', 'k', 'e', 'n', 'l', 'o', 'o', 'm', ' ', 'p', 'a', 'c', 'k', 'e', 'd'};
constexpr uint32_t kFileVersion = 1;
constexpr size_t kFingerprint = 64;
constexpr uint64_t kAlignment = 64;
constexpr time_t kAbandonedAfter = 3600;  // seconds
// Written at once and at multiples of it, so that the system's cache can hold the file in huge pages.
constexpr size_t kWriting = 2 * kHugePage;

struct Header {
    char magic[sizeof kMagic];
    uint32_t file_version;
    uint32_t layout;  // kPackedLayout
    char fingerprint[kFingerprint];
    uint64_t file_bytes;
    uint64_t matrices;
    uint64_t table_checksum;  // of the table
    uint64_t checksum;        // of the header to here
};

struct Row {
    int64_t type;
    int64_t rows;
    int64_t columns;
    uint64_t bytes;
    uint64_t offset;
    uint64_t checksum;
};

// Of any bytes: four lanes of 64 bits, each step of which can be undone, so that no change of one word goes unnoticed.
uint64_t checksum(const void* data, size_t size) {
    constexpr uint64_t multiplier = 0x9e3779b97f4a7c15u;
    const auto mix = [](uint64_t state, uint64_t word) { return std::rotl(state ^ word, 29) * multiplier; };
    const auto* bytes = static_cast<const uint8_t*>(data);
    uint64_t lanes[4] = {1, 2, 3, 4};
    size_t at = 0;
    for (; at + 32 <= size; at += 32) {
        uint64_t words[4];
        std::memcpy(words, bytes + at, 32);
        for (int i = 0; i < 4; ++i) {
            lanes[i] = mix(lanes[i], words[i]);
        }
    }
    uint64_t rest[4] = {};
    std::memcpy(rest, bytes + at, size - at);
    uint64_t sum = size;
    for (int i = 0; i < 4; ++i) {
        sum = mix(sum, mix(lanes[i], rest[i]));
    }
    return sum ^ sum >> 32;
}

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<uint64_t> offsets_of(const PackedKey& key, uint64_t& end) {
    std::vector<uint64_t> offsets;
    end = aligned(sizeof(Header) + key.matrices.size() * sizeof(Row));
    for (const PackedShape& matrix : key.matrices) {
        offsets.push_back(end);
        end = aligned(end + matrix.bytes);
    }
    return offsets;
}

Header header_of(const PackedKey& key, uint64_t file_bytes, const std::vector<Row>& table) {
    Header header{};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    header.file_version = kFileVersion;
    header.layout = kPackedLayout;
    std::memcpy(header.fingerprint, key.fingerprint.data(), std::min(key.fingerprint.size(), kFingerprint));
    header.file_bytes = file_bytes;
    header.matrices = key.matrices.size();
    header.table_checksum = checksum(table.data(), table.size() * sizeof(Row));
    header.checksum = checksum(&header, offsetof(Header, checksum));
    return header;
}

std::vector<Row> table_of(const PackedKey& key, const std::vector<uint64_t>& offsets, const std::vector<uint64_t>& checksums) {
    std::vector<Row> table;
    for (size_t i = 0; i < key.matrices.size(); ++i) {
        const PackedShape& m = key.matrices[i];
        table.push_back({m.type, m.rows, m.columns, m.bytes, offsets[i], checksums[i]});
    }
    return table;
}

std::string folder_of(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}

}  // namespace

uint64_t PackedKey::bytes() const {
    uint64_t sum = 0;
    for (const PackedShape& matrix : matrices) {
        sum += matrix.bytes;
    }
    return sum;
}

std::unique_ptr<PackedCache> PackedCache::open(const std::string& path, const PackedKey& key, const Progress& progress, std::string& why) {
    if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
        return nullptr;
    }
    std::unique_ptr<PackedCache> cache;
    try {
        cache.reset(new PackedCache(path));
    } catch (const ModelError&) {
        why = "it cannot be mapped";
        return nullptr;
    }
    // What is not in the system's cache yet is then read into huge pages, if the file system can.
    prefer_huge_pages(const_cast<uint8_t*>(cache->file_.data()), cache->file_.size());
    why = cache->refuse(key, progress);
    if (!why.empty()) {
        cache.reset();
    }
    return cache;
}

// What is wrong with the file, or nothing.
std::string PackedCache::refuse(const PackedKey& key, const Progress& progress) {
    Header header;
    if (file_.size() < sizeof header) {
        return "it is cut short";
    }
    std::memcpy(&header, file_.data(), sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
        return "it is no file of packed weights";
    }
    if (header.file_version != kFileVersion || header.layout != kPackedLayout) {
        return "it has version " + std::to_string(header.file_version) + "." + std::to_string(header.layout) + ", and " +
               std::to_string(kFileVersion) + "." + std::to_string(kPackedLayout) + " is needed";
    }
    if (header.checksum != checksum(&header, offsetof(Header, checksum))) {
        return "its header is damaged";
    }
    if (std::string_view(header.fingerprint, kFingerprint) != key.fingerprint) {
        return "it is another model's";
    }
    uint64_t end = 0;
    offsets_ = offsets_of(key, end);
    if (header.matrices != key.matrices.size() || header.file_bytes != end) {
        return "it has other matrices";
    }
    if (file_.size() != end) {
        return "it is " + std::to_string(file_.size()) + " bytes long where " + std::to_string(end) + " are needed";
    }
    std::vector<Row> table(key.matrices.size());
    std::memcpy(table.data(), file_.data() + sizeof header, table.size() * sizeof(Row));
    if (header.table_checksum != checksum(table.data(), table.size() * sizeof(Row))) {
        return "its table is damaged";
    }
    uint64_t done = 0;
    for (size_t i = 0; i < table.size(); ++i) {
        const Row& row = table[i];
        const PackedShape& m = key.matrices[i];
        if (row.type != m.type || row.rows != m.rows || row.columns != m.columns || row.bytes != m.bytes || row.offset != offsets_[i]) {
            return "its matrix " + std::to_string(i) + " is another";
        }
        if (row.checksum != checksum(file_.data() + row.offset, row.bytes)) {
            return "its matrix " + std::to_string(i) + " is damaged";
        }
        done += row.bytes;
        progress(done, key.bytes());
    }
    return "";
}

PackedCacheWriter::PackedCacheWriter(const std::string& path, const PackedKey& key) : path_(path), key_(key) {
    offsets_ = offsets_of(key, file_bytes_);
    remove_abandoned();
    // Of random bits: a process's number would be another's in another container.
    std::random_device random;
    temporary_ = path + "." + std::to_string(random()) + ".tmp";
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) {
        fail("create");
    }
    pending_.reserve(kWriting);
}

PackedCacheWriter::~PackedCacheWriter() {
    if (fd_ >= 0) {
        ::close(fd_);
        ::unlink(temporary_.c_str());
    }
}

void PackedCacheWriter::fail(const std::string& what) const {
    throw EngineError("cannot " + what + " " + temporary_ + ": " + std::strerror(errno));
}

// What writers left that were killed.
void PackedCacheWriter::remove_abandoned() const {
    std::error_code ignored;
    const std::string prefix = std::filesystem::path(path_).filename().string() + ".";
    for (const auto& entry : std::filesystem::directory_iterator(folder_of(path_), ignored)) {
        const std::string name = entry.path().filename().string();
        struct stat info {};
        if (name.starts_with(prefix) && name.ends_with(".tmp") && ::stat(entry.path().c_str(), &info) == 0 &&
            info.st_mtime < std::time(nullptr) - kAbandonedAfter) {
            std::filesystem::remove(entry.path(), ignored);
        }
    }
}

void PackedCacheWriter::write(const void* data, size_t bytes, uint64_t at) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (bytes > 0) {
        const ssize_t written = ::pwrite(fd_, from, std::min<size_t>(bytes, size_t{1} << 30), static_cast<off_t>(at));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            fail("write");
        }
        from += written;
        at += static_cast<uint64_t>(written);
        bytes -= static_cast<size_t>(written);
    }
}

// Behind what came before; zeros for null.
void PackedCacheWriter::append(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (bytes > 0) {
        const size_t count = std::min(bytes, kWriting - pending_.size());
        if (from == nullptr) {
            pending_.resize(pending_.size() + count);
        } else {
            pending_.insert(pending_.end(), from, from + count);
            from += count;
        }
        bytes -= count;
        if (pending_.size() == kWriting) {
            flush();
        }
    }
}

void PackedCacheWriter::flush() {
    write(pending_.data(), pending_.size(), written_);
    written_ += pending_.size();
    pending_.clear();
}

void PackedCacheWriter::add(const uint8_t* data) {
    const size_t index = checksums_.size();
    const uint64_t bytes = key_.matrices[index].bytes;
    append(nullptr, offsets_[index] - (written_ + pending_.size()));
    append(data, bytes);
    checksums_.push_back(checksum(data, bytes));
}

void PackedCacheWriter::commit() {
    flush();
    const std::vector<Row> table = table_of(key_, offsets_, checksums_);
    const Header header = header_of(key_, file_bytes_, table);
    write(table.data(), table.size() * sizeof(Row), sizeof header);
    write(&header, sizeof header, 0);
    if (::ftruncate(fd_, static_cast<off_t>(file_bytes_)) != 0 || ::fsync(fd_) != 0) {
        fail("write");
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
        fail("rename");
    }
    ::close(fd_);
    fd_ = -1;
    if (const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
        ::fsync(folder);  // the name; without it the file is packed again, no more
        ::close(folder);
    }
}

}  // namespace tokenloom
