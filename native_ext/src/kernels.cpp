#include "kernels.h"

#include <array>
#include <cstdlib>
#include <string>

#include "errors.h"

namespace tokenloom {

std::span<const Kernels* const> all_kernels() {
    static const std::array all = {
        &kPortableKernels,
#ifdef TOKENLOOM_X86_KERNELS
        &kAvx2Kernels,
        &kVnniKernels,
#endif
    };
    return all;
}

const Kernels* choose_kernels(std::string_view name) {
    if (name == "ggml") {
        return nullptr;
    }
    const bool automatic = name.empty() || name == "auto";
    const Kernels* chosen = nullptr;
    std::string names = "auto, ggml";
    for (const Kernels* kernels : all_kernels()) {
        if (kernels->usable()) {
            names += std::string(", ") + kernels->name;
            if (automatic || name == kernels->name) {
                chosen = kernels;
            }
        }
    }
    if (chosen == nullptr) {
        throw EngineError("TOKENLOOM_KERNELS is '" + std::string(name.substr(0, 80)) + "'; this machine has " + names);
    }
    return chosen;
}

const Kernels* kernels_of_environment() {
    const char* name = std::getenv("TOKENLOOM_KERNELS");
    return choose_kernels(name == nullptr ? "" : name);
}

}  // namespace tokenloom
