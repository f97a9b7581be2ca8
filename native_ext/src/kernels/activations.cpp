#include "kernels/activations.h"

#include <array>
#include <string_view>

#include "kernels/kernel_table.h"

namespace tokenloom {

std::span<const RowKernels* const> all_row_kernels() {
    static constexpr std::array all = {
        &kPortableRows,
#ifdef TOKENLOOM_X86_KERNELS
        &kAvx2Rows,
        &kAvx512Rows,
#endif
    };
    return all;
}

const RowKernels& row_kernels_of(const Kernels* kernels) {
    if (kernels == nullptr) {
        return kPortableRows;
    }
    const std::string_view multiplying = kernels->name;
    const std::string_view name = multiplying == "avxvnni" ? "avx2" : multiplying == "vnni" ? "avx512" : multiplying;
    const RowKernels* best = &kPortableRows;
    for (const RowKernels* candidate : all_row_kernels()) {
        if (candidate->usable()) {
            best = candidate;
            if (name == candidate->name) {
                break;
            }
        }
    }
    return *best;
}

void write_tile(const RowKernels& kernels, const ActivationSource& source, ActivationForm form, int rows, int tile, int64_t first,
                int64_t last, uint8_t* tiles) {
    const int begin = tile_first_row(rows, tile);
    kernels.write_tile(source, form, begin, tile_first_row(rows, tile + 1) - begin, first, last,
                       tiles + activation_bytes(form, begin, source.columns));
}

}  // namespace tokenloom
