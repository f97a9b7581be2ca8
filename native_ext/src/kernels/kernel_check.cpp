#include "kernels/kernel_check.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/activations.h"
#include "kernels/arranged_tiles.h"
#include "system/child_check.h"

namespace tokenloom {

namespace {

constexpr int kBlocks = 2;
constexpr int kColumns = kBlocks * kBlock;
constexpr int kManyCounts[] = {32, 33, 35, 38, 41, 44};  // of tokens: panels of 16, and of 11 to 15
constexpr int kMost = 44;

// Memory for the check, all of it taken before the child begins: another thread might hold the allocator's lock then.
struct Workspace {
    alignas(64) uint8_t group[kColumns * kGroupRows * sizeof(float)];
    float rows[kMost * kColumns];
    std::vector<uint8_t> tiles[2][kTileTokens + 1];  // of either form, by tokens
    std::vector<uint8_t> own_tile;
    ArrangedTiles arranged;
    float expected[kMost * kGroupRows];
    float got[kMost * kGroupRows];

    explicit Workspace(const ManyTokens* many) {
        CheckNumbers numbers;
        for (float& number : rows) {
            number = numbers.real();
        }
        for (const ActivationForm form : {ActivationForm::rounded, ActivationForm::whole}) {
            for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
                std::vector<uint8_t>& tile = tiles[static_cast<int>(form)][tokens];
                tile.resize(activation_bytes(form, tokens, kColumns));
                write_tiles(kPortableRows, source(), form, tokens, tile.data());
            }
        }
        own_tile.resize(activation_bytes(ActivationForm::whole, kMost, kColumns));
        if (many != nullptr) {
            arranged.reserve(many->bytes(kMost, kBlocks));
        }
    }

    ActivationSource source() const { return {ActivationSource::plain, rows, kColumns, kColumns}; }

    // Any bits will do for integers; floating-point ones must be finite.
    void fill_group(PackedFormat format) {
        const FormatTraits& traits = kFormats[static_cast<int>(format)];
        CheckNumbers numbers;
        for (size_t i = 0; i < sizeof(group); i += 4) {
            for (size_t n = 0; n < 4; ++n) {
                group[i + n] = numbers.byte();
            }
            const float real = numbers.real();
            if (format == PackedFormat::float32) {
                std::memcpy(group + i, &real, sizeof(real));
            } else if (format == PackedFormat::float16 || format == PackedFormat::bfloat16) {
                group[i + 1] &= 0xbf;
                group[i + 3] &= 0xbf;
            }
        }
        for (int block = 0; traits.scales && block < kBlocks; ++block) {
            uint8_t* const begin = group + block * traits.block_bytes();
            for (int at = traits.scales_at(); at < traits.block_bytes(); at += 2) {
                const auto scale = static_cast<uint16_t>(0x2000 | (numbers.next() >> 16 & 0x8fff));  // +-2^-7 to 2^-4
                std::memcpy(begin + at, &scale, sizeof(scale));
            }
        }
    }
};

// Of many tokens, against tile after tile.
bool same_bits(const ManyTokens& many, int format, const PackedGroup& group, Workspace& space) {
    for (const int tokens : kManyCounts) {
        uint8_t* const tiles = space.own_tile.data();
        write_tiles(kPortableRows, space.source(), ActivationForm::rounded, tokens, tiles);
        for (int tile = 0; tile < tile_count(tokens); ++tile) {
            const int row = tile_first_row(tokens, tile);
            kPortableKernels.multiply[format](group, tiles + activation_bytes(ActivationForm::rounded, row, kColumns),
                                              tile_first_row(tokens, tile + 1) - row, space.expected + row * kGroupRows, kGroupRows, {});
        }
        const uint8_t* arranged = space.arranged.arrange(many, tiles, tokens, 0, tile_count(tokens), kBlocks);
        const Fetch fetch{space.group, space.group + kBlocks * kFormats[format].block_bytes()};
        many.multiply[format](group, arranged, tokens, space.got, kGroupRows, fetch);
        if (std::memcmp(space.expected, space.got, tokens * kGroupRows * sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

// Rows of the check as cells hold them.
struct Stored {
    uint16_t halves[kPositionsTogether * kHalvesWidth];
    uint16_t spread[kHalvesWidth * kPositionsTogether];
    int8_t bytes[kColumns];
    uint16_t scale;
    float weights[kColumns];
    double sums[(kColumns + kWeighed - 1) / kWeighed];
    float tops[(kColumns + kWeighed - 1) / kWeighed];

    Stored(const RowKernels& kernels, const float* rows) {
        std::memset(this, 0, sizeof(*this));
        for (int i = 0; i < kPositionsTogether; ++i) {
            kernels.write_halves(rows + i, kHalvesWidth, halves + i * kHalvesWidth);
        }
        kernels.spread_halves(halves, kPositionsTogether, kHalvesWidth, spread, kPositionsTogether);
        scale = kernels.write_bytes(rows, kColumns, bytes, 1);
        kernels.weigh(rows, kColumns - 5, 1.0f, 3.0f, weights, sums, tops);
    }
};

bool same_bits(const RowKernels& kernels, Workspace& space) {
    for (const ActivationForm form : {ActivationForm::rounded, ActivationForm::whole}) {
        for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
            const std::vector<uint8_t>& expected = space.tiles[static_cast<int>(form)][tokens];
            write_tiles(kernels, space.source(), form, tokens, space.own_tile.data());
            if (std::memcmp(expected.data(), space.own_tile.data(), expected.size()) != 0) {
                return false;
            }
        }
    }
    const Stored expected(kPortableRows, space.rows);
    const Stored got(kernels, space.rows);
    return std::memcmp(&expected, &got, sizeof(got)) == 0;
}

bool same_bits(const Kernels& kernels, Workspace& space) {
    if (!same_bits(row_kernels_of(&kernels), space)) {
        return false;
    }
    for (int f = 0; f < kPackedFormats; ++f) {
        space.fill_group(static_cast<PackedFormat>(f));
        const bool rounded = kFormats[f].scales;
        const PackedGroup group{space.group, rounded ? kBlocks : kColumns};
        const Fetch fetch{space.group, space.group + (rounded ? kBlocks * kFormats[f].block_bytes() : 0)};
        for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
            const uint8_t* tile = space.tiles[rounded ? 0 : 1][tokens].data();
            constexpr size_t stride = kGroupRows;
            kPortableKernels.multiply[f](group, tile, tokens, space.expected, stride, {});
            kernels.multiply[f](group, tile, tokens, space.got, stride, fetch);
            if (std::memcmp(space.expected, space.got, tokens * stride * sizeof(float)) != 0) {
                return false;
            }
        }
        if (kernels.many != nullptr && kernels.many->multiply[f] != nullptr && !same_bits(*kernels.many, f, group, space)) {
            return false;
        }
    }
    return true;
}

}  // namespace

bool check_kernels(const Kernels& kernels) {
    struct Check {
        const Kernels& kernels;
        Workspace space;
    };
    const std::unique_ptr<Check> check(new Check{kernels, Workspace(kernels.many)});
    return holds_in_child(
        [](void* context) {
            auto& [checked, space] = *static_cast<Check*>(context);
            return same_bits(checked, space);
        },
        check.get());
}

}  // namespace tokenloom
