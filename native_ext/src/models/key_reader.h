// A file's hyperparameters, named without the architecture's prefix, with bounds.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace tokenloom {

// Far above any model, and low enough that no product of them overflows.
constexpr uint64_t kMostLayers = 4096;
constexpr uint64_t kMostEmbedding = 1u << 20;
constexpr uint64_t kMostFeedForward = 1u << 24;
constexpr uint64_t kMostHeads = 1u << 14;
constexpr uint64_t kMostHeadSize = 1024;
constexpr uint64_t kMostContext = 1u << 28;
constexpr uint64_t kMostExperts = 1u << 12;

// Every function throws ModelError, which names the key, its value and the limit.
class KeyReader {
public:
    KeyReader(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

    const GgufFile& file() const { return file_; }
    std::string key(const std::string& name) const { return prefix_ + name; }
    bool has(const std::string& name) const { return file_.find(key(name)) != nullptr; }

    // Integers from 1; an array of them only if all agree.
    int required(const std::string& name, uint64_t most) const;
    int optional(const std::string& name, uint64_t most, int fallback) const;
    // Integers from 0, of which 0 means that the file says nothing.
    int or_zero(const std::string& name, uint64_t most) const;
    // One for each layer, from an array or from one for all. `least`: 0 or 1.
    std::vector<int> by_layer(const std::string& name, int layers, uint64_t least, uint64_t most, std::optional<int> fallback) const;
    // Of a pattern: bools or integers, as many as there are; nothing if the key is no array.
    std::optional<std::vector<bool>> flags(const std::string& name) const;

    float number(const std::string& name, float fallback) const;
    float positive(const std::string& name, float fallback) const;  // or the fallback if it is 0
    bool flag(const std::string& name, bool fallback) const;
    std::string text(const std::string& name, const std::string& fallback) const;
    // Numbers under a name without prefix, one for each layer.
    std::vector<float> numbers_of_layers(const std::string& whole_name, int layers) const;

    [[noreturn]] void fail(const std::string& name, const std::string& value, const std::string& limit) const;

private:
    uint64_t integer(const std::string& key, const GgufValue& value) const;
    int bounded(const std::string& key, uint64_t value, uint64_t least, uint64_t most) const;

    const GgufFile& file_;
    std::string prefix_;
};

}  // namespace tokenloom
