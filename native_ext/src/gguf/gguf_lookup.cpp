// GgufFile: finding key-values and tensors by name, with the types that the caller needs.

#include "gguf/gguf.h"

namespace tokenloom {

std::string shown(std::string_view text) {
    std::string out = "'";
    for (const char c : text.substr(0, 80)) {
        out += (c >= 0x20 && c < 0x7f) ? c : '?';
    }
    return out + (text.size() > 80 ? "...'" : "'");
}

const GgufValue* GgufFile::find(std::string_view key) const {
    const auto it = value_index_.find(key);
    return it == value_index_.end() ? nullptr : &values_[it->second].second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto it = tensor_index_.find(name);
    return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

std::optional<uint64_t> GgufFile::unsigned_of(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (const auto* u = std::get_if<uint64_t>(&value->data)) {
        return *u;
    }
    if (const auto* i = std::get_if<int64_t>(&value->data); i != nullptr && *i >= 0) {
        return static_cast<uint64_t>(*i);
    }
    fail("key " + shown(key) + " must be an integer of at least 0, it is of type " + gguf_type_name(value->type));
}

std::optional<double> GgufFile::float_of(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (const auto* f = std::get_if<double>(&value->data)) {
        return *f;
    }
    if (const auto* u = std::get_if<uint64_t>(&value->data)) {
        return static_cast<double>(*u);
    }
    if (const auto* i = std::get_if<int64_t>(&value->data)) {
        return static_cast<double>(*i);
    }
    fail("key " + shown(key) + " must be a number, it is of type " + gguf_type_name(value->type));
}

std::optional<bool> GgufFile::bool_of(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (const auto* b = std::get_if<bool>(&value->data)) {
        return *b;
    }
    fail("key " + shown(key) + " must be a bool, it is of type " + gguf_type_name(value->type));
}

std::optional<std::string_view> GgufFile::string_of(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (const auto* s = std::get_if<std::string_view>(&value->data)) {
        return *s;
    }
    fail("key " + shown(key) + " must be a string, it is of type " + gguf_type_name(value->type));
}

}  // namespace tokenloom
