// The small work on each token's row around the multiplications, one table of function pointers for each instruction set: making
// tiles of activations, storing keys and values in cells, and weighing logits. All give the same bits.
//
// Included where the instruction set differs: nothing of the standard library in here (kernel_table.h tells why), and no
// functions but constant ones.

#pragma once

#include "kernels/packed_layout.h"
#include "kernels/weigh.h"

namespace tokenloom {

// How tiles hold numbers: rounded to int8; as they are; or so rounded to the 11 bits that float16 has, as llama.cpp does before
// it multiplies with float16 weights, but with the range of float32.
enum class ActivationForm { rounded, whole, shortened };

// Where numbers come from, one row of float32 for each token.
struct ActivationSource {
    // Of a row [columns], or of one [gate, up] with each [columns]:
    //     gelu(g)    = g / (1 + e^(-2 u)), u = sqrt(2 / pi) (g + 0.044715 g^3): GELU by its tanh approximation (Hendrycks and Gimpel
    //                  2016), written without tanh
    //     silu(g)    = g / (1 + e^-g)
    //     erf        as in Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7
    enum Kind {
        plain,          // the row as it is
        normed,         // row / sqrt(mean(row^2) + epsilon) * weight
        layer_normed,   // (row - mean) / sqrt(mean((row - mean)^2) + epsilon) * weight + bias
        gated,          // silu(gate) * up
        gelu_gated,     // gelu(gate) * up
        erf_gated,      // gate * (1 + erf(gate / sqrt(2))) / 2 * up
        clamped_gated,  // g / (1 + e^(-1.702 g)) * (u + 1), g = min(gate, 7), u = up between -7 and 7 (gpt-oss)
        silu,           // silu(row)
        gelu,           // gelu(row)
        erf_gelu,       // row * (1 + erf(row / sqrt(2))) / 2
        relu_squared,   // max(row, 0)^2
        xielu,          // x > 0: p x^2 + beta x; otherwise (e^min(x, epsilon) - 1 - x) n + beta x (Huang 2025)
    };
    Kind kind;
    const float* data;
    size_t stride;  // floats from one row to the next
    int64_t columns;
    const float* weight = nullptr;  // of a normed one, [columns]; of xielu {p, n, beta, epsilon}
    float epsilon = 0.0f;
    const float* bias = nullptr;    // of a layer-normed one, [columns], or null
};
constexpr int kActivationKinds = ActivationSource::xielu + 1;

// Whether a source's rows are [gate, up].
constexpr bool is_gated(ActivationSource::Kind kind) { return kind >= ActivationSource::gated && kind <= ActivationSource::clamped_gated; }

constexpr int kPositionsTogether = 8;
constexpr int kHalvesWidth = 64;
constexpr float kLargestHalf = 65504.0f;
constexpr float kLargestByte = 127.0f;
constexpr uint16_t kHalfNan = 0x7e00;

// A block of activations below it is zero.
constexpr float kSmallestBlock = 1e-30f;

struct RowKernels {
    const char* name;
    // Columns `first` to `last` - 1 of `tokens` rows (1 to kTileTokens) of the source from `first_row` on, to their place in a tile.
    // `first` and, unless it is the end, `last` are multiples of 32; in the rounded form `last` is in any case.
    void (*write_tile)(const ActivationSource& source, ActivationForm form, int first_row, int tokens, int64_t first, int64_t last,
                       uint8_t* tile);

    // A head's key or value of `count` numbers as cells hold it (kv_pool.h). In float16: numbers beyond its range become its
    // largest, and a NaN stays one.
    void (*write_halves)(const float* from, int count, uint16_t* to);
    // Keys of up to kPositionsTogether positions in float16, [positions][kHalvesWidth] of which `count` count, to where cells have
    // them: to[number * stride + position].
    void (*spread_halves)(const uint16_t* from, int positions, int count, uint16_t* to, size_t stride);
    // In int8, to[number * stride], rounded to multiples of a scale (largest magnitude / 127), which is returned as float16. If a
    // number is NaN the scale is, and numbers are 0.
    uint16_t (*write_bytes)(const float* from, int count, int8_t* to, size_t stride);

    Weigh weigh;

    bool (*usable)();  // on this machine
};

extern const RowKernels kPortableRows;
#ifdef TOKENLOOM_X86_KERNELS
extern const RowKernels kAvx2Rows;
extern const RowKernels kAvx512Rows;
#endif

}  // namespace tokenloom
