// The reference: plain loops over lanes that a compiler may turn into vectors of any width. Built like attention.cpp, for
// what ggml itself requires of the CPU, so that a fused multiply-add is an instruction wherever the CPU has one.

#include <cmath>

#include "kernel_table.h"
#include "vector8.h"

namespace tokenloom {

namespace {

constexpr bool is_nibbles(PackedFormat format) {
    return format == PackedFormat::nibbles_centred || format == PackedFormat::nibbles_minimum;
}

constexpr bool is_halves(PackedFormat format) { return format == PackedFormat::bytes_halves; }

constexpr bool has_minimum(PackedFormat format) {
    return format == PackedFormat::nibbles_minimum || format == PackedFormat::bytes_minimum;
}

void widen(const uint16_t* halves, float (&wide)[kGroupRows]) {
    for (int i = 0; i < kGroupRows; i += 8) {
        Float8 v;
        load8(v, halves + i);
        store8(wide + i, v);
    }
}

// A block's weights as stored, unsigned: wide[k][row].
template <PackedFormat format>
void widen(const uint8_t* quants, int16_t (&wide)[kBlock][kGroupRows]) {
    for (int i = 0; i < (is_nibbles(format) ? 4 : 8); ++i) {
        for (int n = 0; n < 4; ++n) {
            for (int row = 0; row < kGroupRows; ++row) {
                const uint8_t byte = quants[i * 64 + row * 4 + n];
                if constexpr (is_nibbles(format)) {
                    wide[4 * i + n][row] = byte & 15;
                    wide[4 * (i + 4) + n][row] = byte >> 4;
                } else {
                    wide[4 * i + n][row] = byte;
                }
            }
        }
    }
}

template <PackedFormat format>
void multiply(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride) {
    float acc[kTileTokens][kGroupRows] = {};
    for (int b = 0; b < group.blocks; ++b) {
        int16_t wide[kBlock][kGroupRows];
        widen<format>(group.quants + static_cast<size_t>(b) * (is_nibbles(format) ? 256 : 512), wide);
        float scales[kGroupRows];
        float minimums[kGroupRows];
        widen(group.scales + static_cast<size_t>(b) * kGroupRows, scales);
        if constexpr (has_minimum(format) || is_halves(format)) {
            widen(group.minimums + static_cast<size_t>(b) * kGroupRows, minimums);
        }
        const uint8_t* block = tile + static_cast<size_t>(b) * kTileBytes * tokens;
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
                    acc[t][row] = std::fma(static_cast<float>(sums[row]), factors[row] * scale[t], acc[t][row]);
                }
            };
            if constexpr (is_halves(format)) {
                add(starts[2 * tokens + t], 0, kBlock / 2, scales);
                add(starts[3 * tokens + t], kBlock / 2, kBlock, minimums);
                continue;
            }
            add(format == PackedFormat::nibbles_minimum ? 0 : starts[(is_nibbles(format) ? 0 : tokens) + t], 0, kBlock, scales);
            if constexpr (has_minimum(format)) {
                for (int row = 0; row < kGroupRows; ++row) {
                    acc[t][row] = std::fma(minimums[row], scaled_sum[t], acc[t][row]);
                }
            }
        }
    }
    for (int t = 0; t < tokens; ++t) {
        for (int row = 0; row < kGroupRows; ++row) {
            out[t * stride + row] = acc[t][row];
        }
    }
}

}  // namespace

const Kernels kPortableKernels = {"portable",
                                  {multiply<PackedFormat::nibbles_centred>, multiply<PackedFormat::nibbles_minimum>,
                                   multiply<PackedFormat::bytes>, multiply<PackedFormat::bytes_minimum>,
                                   multiply<PackedFormat::bytes_halves>},
                                  [] { return true; }};

}  // namespace tokenloom
