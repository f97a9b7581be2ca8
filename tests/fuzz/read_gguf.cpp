// libFuzzer's entry to the GGUF reader: everything that is read of a model file before its weights. See libfuzzer.sh.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "system/errors.h"
#include "gguf/gguf.h"
#include "models/description.h"
#include "gguf/mapped_file.h"

namespace {

void walk(const tokenloom::GgufFile& file, const tokenloom::GgufValue& value) {
    if (const auto* array = std::get_if<tokenloom::GgufArray>(&value.data)) {
        file.for_each(*array, [&](const tokenloom::GgufValue& element) { walk(file, element); });
    } else if (const auto* text = std::get_if<std::string_view>(&value.data)) {
        volatile char last = text->empty() ? '\0' : text->back();
        (void)last;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const int fd = memfd_create("model", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(fd);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) {
        return -1;
    }
    try {
        const tokenloom::MappedFile mapped(path);
        const tokenloom::GgufFile file(mapped);
        for (const auto& [key, value] : file.values()) {
            walk(file, value);
        }
        for (const auto& tensor : file.tensors()) {
            volatile uint8_t last = tensor.bytes == 0 ? 0 : mapped.data()[tensor.offset + tensor.bytes - 1];
            (void)last;
        }
        tokenloom::read_description(file);
    } catch (const tokenloom::ModelError&) {
    }
    return 0;
}
