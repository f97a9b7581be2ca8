// Reading GGUF files (versions 2 and 3, little-endian), as the format is specified in ggml's docs/gguf.md.
//
// The file is hostile until proven otherwise: every length is checked against what is left of the file before it is
// used, every product against overflow, and everything that is wrong becomes a ModelError naming the file, the place and
// the limit. After construction all key-values have been walked once and every tensor lies inside the file, aligned, with
// dimensions that are whole blocks of its type. Nothing is copied but names: strings, arrays and tensors stay views into
// the mapped file, so a GgufFile must not outlive its MappedFile.

#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "gguf/mapped_file.h"

namespace tokenloom {

// Value types, numbered as in the file.
enum class GgufType : uint32_t {
    u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9, u64 = 10, i64 = 11, f64 = 12,
};

const char* gguf_type_name(GgufType type);

// For messages: a name out of the file in quotes, cut to 80 bytes, everything unprintable shown as '?'.
std::string shown(std::string_view text);

// An array of `count` elements, still encoded; decode it with GgufFile::for_each.
struct GgufArray {
    GgufType element;
    uint64_t count;
    uint64_t offset;  // of the first element, in bytes from the start of the file
};

struct GgufValue {
    GgufType type;
    std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> data;
};

struct GgufTensor {
    std::string name;
    ggml_type type;
    int dimensions;
    std::array<int64_t, 4> shape;  // elements, innermost first; 1 beyond `dimensions`
    uint64_t offset;               // of the data, in bytes from the start of the file
    uint64_t bytes;
};

// Limits on what a sane file holds; far above any real model, low enough that a hostile file cannot use up the memory.
constexpr uint64_t kMaxKeyValues = 1u << 16;
constexpr uint64_t kMaxTensors = 1u << 20;
constexpr uint64_t kMaxKeyLength = 65535;            // the format's own limit
constexpr uint64_t kMaxTensorNameLength = 63;        // ggml's: GGML_MAX_NAME - 1
constexpr uint64_t kMaxArrayElements = 1u << 24;     // of one array, nested elements included
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxAlignment = 1u << 20;

class GgufFile {
public:
    // Parses and checks the whole header. Throws ModelError.
    explicit GgufFile(const MappedFile& file);

    const std::string& path() const { return file_.path(); }
    const MappedFile& file() const { return file_; }
    uint32_t version() const { return version_; }
    // Bytes from the start of the file to the first tensor's data.
    uint64_t data_offset() const { return data_offset_; }

    // Key-values and tensors in file order.
    const std::vector<std::pair<std::string, GgufValue>>& values() const { return values_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }

    const GgufValue* find(std::string_view key) const;
    const GgufTensor* find_tensor(std::string_view name) const;

    // Typed look-ups: nullopt when the key is absent, ModelError when it has another type or does not fit.
    // Integers of any width are accepted for integers, and integers or floats for floats.
    std::optional<uint64_t> unsigned_of(std::string_view key) const;
    std::optional<double> float_of(std::string_view key) const;
    std::optional<bool> bool_of(std::string_view key) const;
    std::optional<std::string_view> string_of(std::string_view key) const;

    // Calls `visit` with each element in order.
    void for_each(const GgufArray& array, const std::function<void(const GgufValue&)>& visit) const;

    // Throws ModelError: the path, then `what`.
    [[noreturn]] void fail(const std::string& what) const;

private:
    class Cursor;
    GgufValue read_value(Cursor& cursor, GgufType type, int depth, uint64_t& elements) const;
    void read_key_values(Cursor& cursor, uint64_t count);
    void read_tensors(Cursor& cursor, uint64_t count);
    void place_tensors(uint64_t alignment);

    const MappedFile& file_;
    uint32_t version_ = 0;
    uint64_t data_offset_ = 0;
    std::vector<std::pair<std::string, GgufValue>> values_;
    std::unordered_map<std::string_view, size_t> value_index_;
    std::vector<GgufTensor> tensors_;
    std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace tokenloom
