#include "models/key_reader.h"

#include <cmath>

namespace tokenloom {

namespace {

std::optional<uint64_t> unsigned_in(const GgufValue& value) {
    if (const auto* u = std::get_if<uint64_t>(&value.data)) {
        return *u;
    }
    if (const auto* i = std::get_if<int64_t>(&value.data); i != nullptr && *i >= 0) {
        return static_cast<uint64_t>(*i);
    }
    return std::nullopt;
}

}  // namespace

int KeyReader::bounded(const std::string& key, uint64_t value, uint64_t least, uint64_t most) const {
    if (value < least || value > most) {
        file_.fail("key '" + key + "' is " + std::to_string(value) + "; it must be from " + std::to_string(least) + " to " +
                   std::to_string(most));
    }
    return static_cast<int>(value);
}

// One integer, also from an array whose elements agree.
uint64_t KeyReader::integer(const std::string& key, const GgufValue& value) const {
    const auto* array = std::get_if<GgufArray>(&value.data);
    if (array == nullptr) {
        return *file_.unsigned_of(key);
    }
    std::optional<uint64_t> first;
    file_.for_each(*array, [&](const GgufValue& element) {
        const auto number = unsigned_in(element);
        if (!number) {
            file_.fail("key '" + key + "' must hold integers of at least 0");
        }
        if (first && *first != *number) {
            file_.fail("key '" + key + "' differs from layer to layer, which is not supported");
        }
        first = number;
    });
    if (!first) {
        file_.fail("key '" + key + "' is an empty array");
    }
    return *first;
}

int KeyReader::required(const std::string& name, uint64_t most) const {
    const GgufValue* value = file_.find(key(name));
    if (value == nullptr) {
        file_.fail("key '" + key(name) + "' is missing");
    }
    return bounded(key(name), integer(key(name), *value), 1, most);
}

int KeyReader::optional(const std::string& name, uint64_t most, int fallback) const {
    return has(name) ? required(name, most) : fallback;
}

int KeyReader::or_zero(const std::string& name, uint64_t most) const {
    const GgufValue* value = file_.find(key(name));
    if (value == nullptr) {
        return 0;
    }
    const auto* array = std::get_if<GgufArray>(&value->data);
    return array != nullptr && array->count == 0 ? 0 : bounded(key(name), integer(key(name), *value), 0, most);
}

std::vector<int> KeyReader::by_layer(const std::string& name, int layers, uint64_t least, uint64_t most, std::optional<int> fallback) const {
    const GgufValue* value = file_.find(key(name));
    if (value == nullptr && fallback) {
        return std::vector<int>(static_cast<size_t>(layers), *fallback);
    }
    if (value == nullptr) {
        file_.fail("key '" + key(name) + "' is missing");
    }
    const auto* array = std::get_if<GgufArray>(&value->data);
    if (array == nullptr) {
        return std::vector<int>(static_cast<size_t>(layers), bounded(key(name), *file_.unsigned_of(key(name)), least, most));
    }
    if (array->count < static_cast<uint64_t>(layers)) {
        file_.fail("key '" + key(name) + "' has " + std::to_string(array->count) + " elements; the model has " + std::to_string(layers) +
                   " layers");
    }
    std::vector<int> out;
    file_.for_each(*array, [&](const GgufValue& element) {
        const auto number = unsigned_in(element);
        if (!number) {
            file_.fail("key '" + key(name) + "' must hold integers of at least 0");
        }
        if (out.size() < static_cast<size_t>(layers)) {
            out.push_back(bounded(key(name), *number, least, most));
        }
    });
    return out;
}

std::optional<std::vector<bool>> KeyReader::flags(const std::string& name) const {
    const GgufValue* value = file_.find(key(name));
    const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(&value->data);
    if (array == nullptr) {
        return std::nullopt;
    }
    std::vector<bool> out;
    file_.for_each(*array, [&](const GgufValue& element) {
        if (const auto* flag = std::get_if<bool>(&element.data)) {
            out.push_back(*flag);
        } else if (const auto number = unsigned_in(element)) {
            out.push_back(*number != 0);
        } else {
            file_.fail("key '" + key(name) + "' must hold bools, or integers of at least 0");
        }
    });
    return out;
}

float KeyReader::number(const std::string& name, float fallback) const {
    const auto value = file_.float_of(key(name));
    if (!value) {
        return fallback;
    }
    if (!std::isfinite(*value) || !std::isfinite(static_cast<float>(*value))) {
        file_.fail("key '" + key(name) + "' is not a finite float32");
    }
    return static_cast<float>(*value);
}

float KeyReader::positive(const std::string& name, float fallback) const {
    const float value = number(name, 0.0f);
    if (value < 0) {
        file_.fail("key '" + key(name) + "' is " + std::to_string(value) + "; it must be above 0");
    }
    return value == 0.0f ? fallback : value;
}

bool KeyReader::flag(const std::string& name, bool fallback) const { return file_.bool_of(key(name)).value_or(fallback); }

std::string KeyReader::text(const std::string& name, const std::string& fallback) const {
    return std::string(file_.string_of(key(name)).value_or(fallback));
}

std::vector<float> KeyReader::numbers_of_layers(const std::string& whole_name, int layers) const {
    const GgufValue* value = file_.find(whole_name);
    const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(&value->data);
    std::vector<float> out;
    if (array == nullptr) {
        const auto number = file_.float_of(whole_name);
        if (!number) {
            file_.fail("key '" + whole_name + "' is missing");
        }
        out.assign(static_cast<size_t>(layers), static_cast<float>(*number));
    } else {
        file_.for_each(*array, [&](const GgufValue& element) {
            const auto* number = std::get_if<double>(&element.data);
            if (number == nullptr) {
                file_.fail("key '" + whole_name + "' must hold floats");
            }
            out.push_back(static_cast<float>(*number));
        });
        if (out.size() != static_cast<size_t>(layers)) {
            file_.fail("key '" + whole_name + "' has " + std::to_string(out.size()) + " elements; the model has " + std::to_string(layers) +
                       " layers");
        }
    }
    for (const float number : out) {
        if (!std::isfinite(number)) {
            file_.fail("key '" + whole_name + "' is not a finite float32");
        }
    }
    return out;
}

void KeyReader::fail(const std::string& name, const std::string& value, const std::string& limit) const {
    file_.fail("key '" + key(name) + "' is " + value + "; " + limit);
}

}  // namespace tokenloom
