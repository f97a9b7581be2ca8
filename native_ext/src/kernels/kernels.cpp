#include "kernels/kernels.h"

#include <array>
#include <cstdlib>
#include <string>

#include "system/child_check.h"
#include "system/errors.h"
#include "kernels/kernel_check.h"

namespace tokenloom {

std::span<const Kernels* const> all_kernels() {
    static const std::array all = {
        &kPortableKernels,
#ifdef TOKENLOOM_X86_KERNELS
        &kEmulatedAmxKernels,
        &kAvx2Kernels,
        &kAvxVnniKernels,
        &kVnniKernels,
#endif
#ifdef TOKENLOOM_AMX_KERNELS
        &kAmxKernels,
#endif
#ifdef TOKENLOOM_NEON_KERNELS
        &kNeonKernels,
#endif
    };
    return all;
}

bool works(const Kernels& kernels) {
    return found_once<Kernels>(kernels, [](const Kernels& k) { return k.usable() && (&k == &kPortableKernels || check_kernels(k)); });
}

const Kernels* choose_kernels(std::string_view name) {
    if (name == "ggml") {
        return nullptr;
    }
    const bool automatic = name.empty() || name == "auto";
    const Kernels* chosen = nullptr;
    for (const Kernels* kernels : all_kernels()) {
        // Others are not even asked whether they work: AMX takes a permission that changes the process.
        if ((automatic ? kernels->choice == Choice::automatic : name == kernels->name) && works(*kernels)) {
            chosen = kernels;
        }
    }
    if (chosen == nullptr) {
        std::string names = "auto, ggml";
        for (const Kernels* kernels : all_kernels()) {
            if (kernels->choice != Choice::tests && works(*kernels)) {
                names += std::string(", ") + kernels->name;
            }
        }
        throw EngineError("TOKENLOOM_KERNELS is '" + std::string(name.substr(0, 80)) + "'; this machine has " + names);
    }
    return chosen;
}

const Kernels* kernels_of_environment() {
    const char* name = std::getenv("TOKENLOOM_KERNELS");
    return choose_kernels(name == nullptr ? "" : name);
}

}  // namespace tokenloom
