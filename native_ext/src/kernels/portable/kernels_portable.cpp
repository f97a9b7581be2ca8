// The reference: plain loops over lanes that a compiler may turn into vectors of any width. Built like attention.cpp, for
// what ggml itself requires of the CPU, so that a fused multiply-add is an instruction wherever the CPU has one.

#include <cmath>
#include <cstring>

#include "kernels/kernel_table.h"
#include "kernels/vector8.h"

namespace tokenloom {

namespace {

constexpr FormatTraits traits_of(PackedFormat format) { return kFormats[static_cast<int>(format)]; }

void widen(const uint16_t* halves, float (&wide)[kGroupRows]) {
    for (int i = 0; i < kGroupRows; i += 8) {
        Float8 v;
        load8(v, halves + i);
        store8(wide + i, v);
    }
}

// A block's numbers as stored, unsigned: wide[k][row].
template <int bits>
void widen(const uint8_t* quants, int16_t (&wide)[kBlock][kGroupRows]) {
    for (int j = 0; j < 8; ++j) {  // k-groups
        for (int n = 0; n < 4; ++n) {
            for (int row = 0; row < kGroupRows; ++row) {
                const int at = row * 4 + n;
                if constexpr (bits == 8) {
                    wide[4 * j + n][row] = quants[kVectorBytes * j + at];
                    continue;
                }
                int q = quants[j / 2 * kVectorBytes + at] >> (j % 2 * 4) & 15;
                if constexpr (bits == 5) {
                    q |= (quants[4 * kVectorBytes + at] >> j & 1) << 4;
                } else if constexpr (bits == 6) {
                    q |= (quants[(4 + j / 4) * kVectorBytes + at] >> (j % 4 * 2) & 3) << 4;
                }
                wide[4 * j + n][row] = static_cast<int16_t>(q);
            }
        }
    }
}

template <PackedFormat format>
void multiply_rounded(const PackedGroup& group, const uint8_t* tile, int tokens, float (&acc)[kTileTokens][kGroupRows]) {
    constexpr FormatTraits traits = traits_of(format);
    for (int b = 0; b < group.blocks; ++b) {
        int16_t wide[kBlock][kGroupRows];
        const uint8_t* weights = group.data + static_cast<size_t>(b) * traits.block_bytes();
        widen<traits.bits>(weights, wide);
        float scales[kGroupRows];
        float minimums[kGroupRows];
        widen(reinterpret_cast<const uint16_t*>(weights + traits.scales_at()), scales);
        if constexpr (traits.second()) {
            widen(reinterpret_cast<const uint16_t*>(weights + traits.second_at()), minimums);
        }
        const uint8_t* block = tile + static_cast<size_t>(b) * kRoundedBytes * tokens;
        const auto* numbers = reinterpret_cast<const int8_t*>(block);
        const auto* scale = reinterpret_cast<const float*>(block + size_t{kBlock} * tokens);
        const float* scaled_sum = scale + tokens;
        const auto* starts = reinterpret_cast<const int32_t*>(scaled_sum + tokens);
        for (int t = 0; t < tokens; ++t) {
            const auto add = [&](int32_t start, int begin, int end, const float* factors) {
                int32_t sums[kGroupRows];
                for (int row = 0; row < kGroupRows; ++row) {
                    sums[row] = start;
                }
                for (int k = begin; k < end; ++k) {
                    const int16_t a = numbers[(k / 4 * tokens + t) * 4 + k % 4];
                    for (int row = 0; row < kGroupRows; ++row) {
                        sums[row] += wide[k][row] * a;
                    }
                }
                for (int row = 0; row < kGroupRows; ++row) {
                    acc[t][row] = std::fma(static_cast<float>(sums[row]) * scale[t], factors[row], acc[t][row]);
                }
            };
            if constexpr (traits.halves) {
                add(starts[2 * tokens + t], 0, kBlock / 2, scales);
                add(starts[3 * tokens + t], kBlock / 2, kBlock, minimums);
                continue;
            }
            const int32_t eighth = starts[t];
            add(traits.bits == 8 ? starts[tokens + t] : eighth * (traits.offset / 8), 0, kBlock, scales);
            if constexpr (traits.minimums) {
                for (int row = 0; row < kGroupRows; ++row) {
                    acc[t][row] = std::fma(minimums[row], scaled_sum[t], acc[t][row]);
                }
            }
        }
    }
}

template <PackedFormat format>
void multiply_whole(const PackedGroup& group, const uint8_t* tile, int tokens, float (&acc)[kTileTokens][kGroupRows]) {
    const auto* numbers = reinterpret_cast<const float*>(tile);
    for (int k = 0; k < group.blocks; ++k, numbers += tokens) {
        const uint8_t* weights = group.data + static_cast<size_t>(k) * traits_of(format).block_bytes();
        float w[kGroupRows];
        if constexpr (format == PackedFormat::float16) {
            widen(reinterpret_cast<const uint16_t*>(weights), w);
        } else if constexpr (format == PackedFormat::bfloat16) {
            for (int row = 0; row < kGroupRows; ++row) {
                const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(weights)[row]) << 16;
                std::memcpy(&w[row], &bits, sizeof(bits));
            }
        } else {
            std::memcpy(w, weights, sizeof(w));
        }
        for (int t = 0; t < tokens; ++t) {
            for (int row = 0; row < kGroupRows; ++row) {
                acc[t][row] = std::fma(w[row], numbers[t], acc[t][row]);
            }
        }
    }
}

template <PackedFormat format>
void multiply(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch) {
    float acc[kTileTokens][kGroupRows] = {};
    if constexpr (traits_of(format).scales) {
        multiply_rounded<format>(group, tile, tokens, acc);
    } else {
        multiply_whole<format>(group, tile, tokens, acc);
    }
    for (int t = 0; t < tokens; ++t) {
        std::memcpy(out + t * stride, acc[t], sizeof(acc[t]));
    }
}

}  // namespace

const Kernels kPortableKernels = {"portable",
                                  {multiply<PackedFormat::nibbles_centred>, multiply<PackedFormat::nibbles_minimum>,
                                   multiply<PackedFormat::fives_centred>, multiply<PackedFormat::fives_minimum>,
                                   multiply<PackedFormat::sixes_halves>, multiply<PackedFormat::bytes>, multiply<PackedFormat::float16>,
                                   multiply<PackedFormat::bfloat16>, multiply<PackedFormat::float32>},
                                  [] { return true; }};

}  // namespace tokenloom
