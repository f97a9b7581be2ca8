#include "gguf/gguf.h"

#include <cstring>
#include <limits>

#include "system/errors.h"

namespace tokenloom {

namespace {

constexpr uint64_t kDefaultAlignment = 32;

// Bytes of one element of a fixed-size type, 0 for strings and arrays.
uint64_t fixed_size(GgufType type) {
    switch (type) {
        case GgufType::u8:
        case GgufType::i8:
        case GgufType::boolean:
            return 1;
        case GgufType::u16:
        case GgufType::i16:
            return 2;
        case GgufType::u32:
        case GgufType::i32:
        case GgufType::f32:
            return 4;
        case GgufType::u64:
        case GgufType::i64:
        case GgufType::f64:
            return 8;
        case GgufType::string:
        case GgufType::array:
            break;
    }
    return 0;
}

}  // namespace

const char* gguf_type_name(GgufType type) {
    static const char* const names[] = {"uint8",  "int8",  "uint16", "int16", "uint32", "int32", "float32",
                                        "bool", "string", "array", "uint64", "int64", "float64"};
    return names[static_cast<uint32_t>(type)];
}

// A read position that never passes `end`.
class GgufFile::Cursor {
public:
    Cursor(const GgufFile& owner, uint64_t at) : owner_(owner), at_(at), end_(owner.file_.size()) {}

    uint64_t at() const { return at_; }
    uint64_t left() const { return end_ - at_; }
    const std::string& reading() const { return reading_; }

    // What is being read, for the message of a truncated file.
    void name(std::string what) { reading_ = std::move(what); }

    const uint8_t* take(uint64_t bytes) {
        if (bytes > left()) {
            owner_.fail("truncated: " + reading_ + " needs " + std::to_string(bytes) + " bytes at offset " + std::to_string(at_) +
                        " and the file ends at " + std::to_string(end_));
        }
        const uint8_t* p = owner_.file_.data() + at_;
        at_ += bytes;
        return p;
    }

    template <typename T>
    T get() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }

    std::string_view string(uint64_t limit) {
        const auto length = get<uint64_t>();
        if (length > limit) {
            owner_.fail(reading_ + ": a string of " + std::to_string(length) + " bytes, the limit is " + std::to_string(limit));
        }
        return {reinterpret_cast<const char*>(take(length)), static_cast<size_t>(length)};
    }

    GgufType type() {
        const auto raw = get<uint32_t>();
        if (raw > static_cast<uint32_t>(GgufType::f64)) {
            owner_.fail(reading_ + ": unknown value type " + std::to_string(raw) + ", known are 0 to 12");
        }
        return static_cast<GgufType>(raw);
    }

private:
    const GgufFile& owner_;
    uint64_t at_;
    uint64_t end_;
    std::string reading_;
};

GgufFile::GgufFile(const MappedFile& file) : file_(file) {
    Cursor cursor(*this, 0);
    cursor.name("the header");
    if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0) {
        fail("not a GGUF file: it does not start with the bytes 'GGUF'");
    }
    cursor.take(4);
    version_ = cursor.get<uint32_t>();
    if (version_ == 0x02000000 || version_ == 0x03000000) {
        fail("a big-endian GGUF file; only little-endian files are supported");
    }
    if (version_ != 2 && version_ != 3) {
        fail("GGUF version " + std::to_string(version_) + " is not supported; supported are 2 and 3");
    }
    const auto tensor_count = cursor.get<uint64_t>();
    const auto value_count = cursor.get<uint64_t>();
    if (tensor_count > kMaxTensors) {
        fail("the header claims " + std::to_string(tensor_count) + " tensors, the limit is " + std::to_string(kMaxTensors));
    }
    if (value_count > kMaxKeyValues) {
        fail("the header claims " + std::to_string(value_count) + " key-values, the limit is " + std::to_string(kMaxKeyValues));
    }
    read_key_values(cursor, value_count);
    read_tensors(cursor, tensor_count);

    uint64_t alignment = kDefaultAlignment;
    if (const auto given = unsigned_of("general.alignment")) {
        alignment = *given;
        if (alignment < 8 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
            fail("general.alignment is " + std::to_string(alignment) + "; it must be a power of two from 8 to " +
                 std::to_string(kMaxAlignment));
        }
    }
    data_offset_ = (cursor.at() + alignment - 1) / alignment * alignment;
    if (!tensors_.empty()) {
        place_tensors(alignment);
    }
}

void GgufFile::fail(const std::string& what) const {
    throw ModelError(path() + ": " + what);
}

GgufValue GgufFile::read_value(Cursor& cursor, GgufType type, int depth, uint64_t& elements) const {
    switch (type) {
        case GgufType::u8:
            return {type, uint64_t{cursor.get<uint8_t>()}};
        case GgufType::u16:
            return {type, uint64_t{cursor.get<uint16_t>()}};
        case GgufType::u32:
            return {type, uint64_t{cursor.get<uint32_t>()}};
        case GgufType::u64:
            return {type, cursor.get<uint64_t>()};
        case GgufType::i8:
            return {type, int64_t{cursor.get<int8_t>()}};
        case GgufType::i16:
            return {type, int64_t{cursor.get<int16_t>()}};
        case GgufType::i32:
            return {type, int64_t{cursor.get<int32_t>()}};
        case GgufType::i64:
            return {type, cursor.get<int64_t>()};
        case GgufType::f32:
            return {type, double{cursor.get<float>()}};
        case GgufType::f64:
            return {type, cursor.get<double>()};
        case GgufType::boolean: {
            const auto raw = cursor.get<uint8_t>();
            if (raw > 1) {
                fail(cursor.reading() + ": a bool of value " + std::to_string(raw) + ", it must be 0 or 1");
            }
            return {type, raw == 1};
        }
        case GgufType::string:
            return {type, cursor.string(cursor.left())};
        case GgufType::array:
            break;
    }
    if (depth == kMaxArrayDepth) {
        fail(cursor.reading() + ": arrays nested deeper than " + std::to_string(kMaxArrayDepth));
    }
    const GgufType element = cursor.type();
    const auto count = cursor.get<uint64_t>();
    if (count > kMaxArrayElements - elements) {
        fail(cursor.reading() + ": an array of " + std::to_string(count) + " elements; the limit, nested ones included, is " +
             std::to_string(kMaxArrayElements));
    }
    elements += count;
    const GgufArray array{element, count, cursor.at()};
    if (const uint64_t size = fixed_size(element); size != 0 && element != GgufType::boolean) {
        cursor.take(count * size);  // cannot overflow: count is below the limit
    } else {
        for (uint64_t i = 0; i < count; ++i) {
            read_value(cursor, element, depth + 1, elements);
        }
    }
    return {type, array};
}

void GgufFile::read_key_values(Cursor& cursor, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        cursor.name("key " + std::to_string(i + 1) + " of " + std::to_string(count));
        std::string key(cursor.string(kMaxKeyLength));
        if (key.empty()) {
            fail(cursor.reading() + " is empty");
        }
        cursor.name("key " + shown(key));
        const GgufType type = cursor.type();
        uint64_t elements = 0;
        values_.emplace_back(std::move(key), read_value(cursor, type, 0, elements));
    }
    for (size_t i = 0; i < values_.size(); ++i) {
        if (!value_index_.emplace(values_[i].first, i).second) {
            fail("key " + shown(values_[i].first) + " occurs twice");
        }
    }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        cursor.name("the name of tensor " + std::to_string(i + 1) + " of " + std::to_string(count));
        GgufTensor tensor{};
        tensor.name = cursor.string(kMaxTensorNameLength);
        const std::string label = "tensor " + shown(tensor.name);
        cursor.name(label);

        const auto dimensions = cursor.get<uint32_t>();
        if (dimensions < 1 || dimensions > 4) {
            fail(label + " has " + std::to_string(dimensions) + " dimensions; 1 to 4 are supported");
        }
        tensor.dimensions = static_cast<int>(dimensions);
        tensor.shape = {1, 1, 1, 1};
        uint64_t elements = 1;
        for (uint32_t d = 0; d < dimensions; ++d) {
            const auto extent = cursor.get<uint64_t>();
            constexpr uint64_t most = std::numeric_limits<int64_t>::max();
            if (extent == 0 || extent > most / elements) {
                fail(label + ": dimension " + std::to_string(d) + " is " + std::to_string(extent) +
                     "; it must be at least 1 and the tensor must hold less than 2^63 elements");
            }
            elements *= extent;
            tensor.shape[d] = static_cast<int64_t>(extent);
        }

        const auto raw_type = cursor.get<uint32_t>();
        if (raw_type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(raw_type)) <= 0 ||
            ggml_type_size(static_cast<ggml_type>(raw_type)) == 0) {
            fail(label + " has type " + std::to_string(raw_type) + ", which ggml " + ggml_version() + " does not know");
        }
        tensor.type = static_cast<ggml_type>(raw_type);
        const auto block = static_cast<uint64_t>(ggml_blck_size(tensor.type));
        if (static_cast<uint64_t>(tensor.shape[0]) % block != 0) {
            fail(label + ": rows of " + std::to_string(tensor.shape[0]) + " elements are no whole blocks of " +
                 std::to_string(block) + " (" + ggml_type_name(tensor.type) + ")");
        }
        const uint64_t blocks = elements / block;
        const uint64_t block_bytes = ggml_type_size(tensor.type);
        if (blocks > std::numeric_limits<int64_t>::max() / block_bytes) {
            fail(label + " would take more than 2^63 bytes");
        }
        tensor.bytes = blocks * block_bytes;
        tensor.offset = cursor.get<uint64_t>();  // relative to the data; place_tensors makes it absolute
        tensors_.push_back(std::move(tensor));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
        if (!tensor_index_.emplace(tensors_[i].name, i).second) {
            fail("tensor " + shown(tensors_[i].name) + " occurs twice");
        }
    }
}

void GgufFile::place_tensors(uint64_t alignment) {
    const uint64_t size = file_.size();
    const uint64_t room = data_offset_ < size ? size - data_offset_ : 0;
    for (GgufTensor& tensor : tensors_) {
        const std::string label = "tensor " + shown(tensor.name);
        if (tensor.offset % alignment != 0) {
            fail(label + ": offset " + std::to_string(tensor.offset) + " is no multiple of the alignment " + std::to_string(alignment));
        }
        if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
            fail("truncated: " + label + " takes " + std::to_string(tensor.bytes) + " bytes at offset " +
                 std::to_string(tensor.offset) + " of the tensor data, of which the file holds " + std::to_string(room));
        }
        tensor.offset += data_offset_;
    }
}

void GgufFile::for_each(const GgufArray& array, const std::function<void(const GgufValue&)>& visit) const {
    Cursor cursor(*this, array.offset);
    cursor.name("an array");
    uint64_t elements = 0;
    for (uint64_t i = 0; i < array.count; ++i) {
        visit(read_value(cursor, array.element, 1, elements));
    }
}

}  // namespace tokenloom
