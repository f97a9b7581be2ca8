// Multiplication kernels on their own, for machines that cannot run the rest: every table that was built against the portable
// one, bit for bit, over formats, numbers of tokens and sizes. Prints a hash of all products, which is the same on every
// machine. See kernels_elsewhere.sh.

#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/activations.h"
#include "kernels/kernel_check.h"

using namespace tokenloom;

namespace {

class Numbers {
public:
    uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }
    float real() { return static_cast<float>(static_cast<int32_t>(next())) * 0x1p-31f; }

private:
    uint32_t state_ = 7;
};

struct Case {
    int format, blocks, tokens;
};

std::vector<float> products(const Kernels& kernels, const Case& c) {
    const FormatTraits& traits = kFormats[c.format];
    const int columns = traits.scales ? c.blocks * kBlock : c.blocks * kBlock - 5;  // any number where there are no blocks
    const int blocks = traits.scales ? c.blocks : columns;
    Numbers numbers;
    std::vector<uint8_t> weights(static_cast<size_t>(blocks) * traits.block_bytes());
    for (size_t i = 0; i < weights.size(); i += 2) {
        const uint32_t bits = numbers.next() >> 16 & (traits.scales ? 0xffff : 0xbfff);  // finite in floating point
        std::memcpy(&weights[i], &bits, 2);
    }
    for (int b = 0; traits.scales && b < blocks; ++b) {
        uint8_t* const block = weights.data() + static_cast<size_t>(b) * traits.block_bytes();
        for (int at = traits.scales_at(); at < traits.block_bytes(); at += 2) {
            const auto scale = static_cast<uint16_t>(0x2000 | (numbers.next() >> 16 & 0x8fff));
            std::memcpy(block + at, &scale, sizeof(scale));
        }
    }
    std::vector<float> x(static_cast<size_t>(c.tokens) * columns);
    for (float& number : x) {
        number = numbers.real();
    }
    const ActivationForm form = traits.scales ? ActivationForm::rounded : ActivationForm::whole;
    std::vector<uint8_t> tile(activation_bytes(form, c.tokens, columns));
    write_tiles(kPortableRows, {ActivationSource::plain, x.data(), static_cast<size_t>(columns), columns}, form, c.tokens, tile.data());
    std::vector<float> out(static_cast<size_t>(c.tokens) * kGroupRows);
    kernels.multiply[c.format]({weights.data(), blocks}, tile.data(), c.tokens, out.data(), kGroupRows, {});
    return out;
}

}  // namespace

int main() {
    const Kernels* tables[] = {
        &kPortableKernels,
#ifdef TOKENLOOM_NEON_KERNELS
        &kNeonKernels,
#endif
    };
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    int failures = 0;
    for (int format = 0; format < kPackedFormats; ++format) {
        for (int blocks = 1; blocks <= 9; blocks += 4) {
            for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
                const Case c{format, blocks, tokens};
                const std::vector<float> expected = products(kPortableKernels, c);
                for (const float number : expected) {
                    uint32_t bits;
                    std::memcpy(&bits, &number, sizeof(bits));
                    hash = (hash ^ bits) * 1099511628211u;
                }
                for (const Kernels* table : tables) {
                    const std::vector<float> got = products(*table, c);
                    if (std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)) != 0) {
                        std::fprintf(stderr, "%s: format %d, %d blocks, %d tokens differ\n", table->name, format, blocks, tokens);
                        ++failures;
                    }
                }
            }
        }
    }
    for (const Kernels* table : tables) {
        if (!table->usable() || !check_kernels(*table)) {
            std::fprintf(stderr, "%s kernels do not pass their own check\n", table->name);
            ++failures;
        }
    }
    std::printf("%016llx\n", static_cast<unsigned long long>(hash));
    return failures == 0 ? 0 : 1;
}
