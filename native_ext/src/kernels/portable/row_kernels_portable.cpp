// The reference: token by token, over vectors of eight that a compiler turns into what it has. Built like attention.cpp, for what
// ggml itself requires of the CPU.

#include <cmath>
#include <cstring>

#include "kernels/row_kernels.h"
#include "kernels/vector8.h"

namespace tokenloom {

namespace {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;
constexpr int kTogether = 8;  // blocks, for vectors of their scales

Int8 bits_of(const Float8& v) {
    Int8 bits;
    std::memcpy(&bits, &v, sizeof(bits));
    return bits;
}

// Up to kTogether blocks of a token, into a tile of so many tokens.
void quantize_blocks(const float* x, int blocks, uint8_t* tile, int tokens, int token) {
    // Magnitudes compare as integers, and a NaN is above all of them.
    int32_t largest[kTogether] = {};
    for (int b = 0; b < blocks; ++b) {
        for (int i = 0; i < kBlock; ++i) {
            int32_t bits;
            std::memcpy(&bits, x + kBlock * b + i, sizeof(bits));
            bits &= 0x7fffffff;
            largest[b] = bits > largest[b] ? bits : largest[b];
        }
        largest[b] = largest[b] > kInfinity ? kNan : largest[b];
    }
    Float8 magnitudes;
    std::memcpy(&magnitudes, largest, sizeof(magnitudes));
    const Int8 zero = magnitudes < kSmallestBlock;
    const Float8 none = {};
    const Float8 scales = zero ? none : magnitudes / 127.0f;
    const Float8 inverses = zero ? none : 127.0f / magnitudes;

    int8_t numbers[kTogether][kBlock] = {};
    int32_t halves[2][kTogether] = {};  // sums of the blocks' first and second halves
    for (int b = 0; b < blocks; ++b) {
        if (largest[b] >= kInfinity) {
            continue;
        }
        for (int i = 0; i < kBlock; i += 8) {
            Float8 values;
            load8(values, x + kBlock * b + i);
            const Int8 rounded = bits_of(values * inverses[b] + kMagic) << 24 >> 24;  // the integer's low byte, with its sign
            for (int lane = 0; lane < 8; ++lane) {
                numbers[b][i + lane] = static_cast<int8_t>(rounded[lane]);
                halves[i / 16][b] += rounded[lane];
            }
        }
    }
    Int8 sums[2];
    std::memcpy(sums, halves, sizeof(sums));
    const Int8 all = sums[0] + sums[1];
    const Float8 scaled_sums = scales * __builtin_convertvector(all, Float8);
    const Int8 starts[4] = {-8 * all, -128 * all, -32 * sums[0], -32 * sums[1]};
    int32_t rest[6][kTogether];
    std::memcpy(rest[0], &scales, sizeof(rest[0]));
    std::memcpy(rest[1], &scaled_sums, sizeof(rest[1]));
    std::memcpy(rest[2], starts, sizeof(starts));

    const size_t step = size_t{4} * tokens;
    uint8_t* out = tile + size_t{4} * token;
    for (int b = 0; b < blocks; ++b) {
        for (int j = 0; j < kBlock / 4; ++j, out += step) {
            std::memcpy(out, numbers[b] + 4 * j, 4);
        }
        for (int i = 0; i < 6; ++i, out += step) {
            std::memcpy(out, &rest[i][b], 4);
        }
    }
}

// The mean of map(v) over the row, summed in 16 lanes and these in a fixed tree; lanes behind the row are 0.
template <typename Map>
float mean_of(const float* row, int64_t columns, const Map& map) {
    Float8 sums[2] = {splat8(0.0f), splat8(0.0f)};
    int64_t i = 0;
    for (; i + 16 <= columns; i += 16) {
        for (int half = 0; half < 2; ++half) {
            Float8 v;
            load8(v, row + i + 8 * half);
            sums[half] += map(v);
        }
    }
    if (i < columns) {
        float rest[16] = {};
        std::memcpy(rest, row + i, static_cast<size_t>(columns - i) * sizeof(float));
        for (int half = 0; half < 2; ++half) {
            Float8 v;
            load8(v, rest + 8 * half);
            v = map(v);
            for (int lane = 0; lane < 8; ++lane) {
                v[lane] = i + 8 * half + lane < columns ? v[lane] : 0.0f;
            }
            sums[half] += v;
        }
    }
    return sum8(sums[0] + sums[1]) / static_cast<float>(columns);
}

// What a norm does to a row: (x - mean) * factor.
struct Scaling {
    float mean = 0.0f;
    float factor = 1.0f;
};

Scaling scaling_of(const ActivationSource& source, const float* row) {
    Scaling out;
    if (source.kind != ActivationSource::normed && source.kind != ActivationSource::layer_normed) {
        return out;
    }
    float square;
    if (source.kind == ActivationSource::normed) {
        square = mean_of(row, source.columns, [](Float8 v) { return v * v; });
    } else {
        out.mean = mean_of(row, source.columns, [](Float8 v) { return v; });
        square = mean_of(row, source.columns, [&](Float8 v) { return (v - splat8(out.mean)) * (v - splat8(out.mean)); });
    }
    out.factor = 1.0f / std::sqrt(square + source.epsilon);
    return out;
}

// x / (1 + e^-y).
Float8 times_sigmoid(Float8 x, Float8 y) {
    const Float8 e = exp8(y < 0 ? y : -y);  // of the side where it does not overflow
    const Float8 one = splat8(1.0f);
    return x * (y < 0 ? e : one) / (one + e);
}

Float8 gelu(Float8 x) { return times_sigmoid(x, x * (x * x * splat8(0.044715f) + splat8(1.0f)) * splat8(1.59576912f)); }

Float8 erf_gelu(Float8 x) {
    const Float8 one = splat8(1.0f);
    Float8 a = (x < 0 ? -x : x) * splat8(0.707106781f);
    const Float8 e = exp8(splat8(0.0f) - a * a);
    a = one / (a * splat8(0.3275911f) + one);
    Float8 p = splat8(1.061405429f);
    constexpr float terms[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f};
    for (const float term : terms) {
        p = p * a + splat8(term);
    }
    const Float8 tail = p * e * splat8(0.5f);
    return x * (x < 0 ? tail : one - tail);
}

Float8 xielu(Float8 x, const float* parameters) {
    const Float8 epsilon = splat8(parameters[3]);
    const Float8 e = exp8(epsilon < x ? epsilon : x);
    const Float8 linear = splat8(parameters[2]) * x;
    const Float8 above = splat8(parameters[0]) * x * x + linear;
    const Float8 below = (e - splat8(1.0f) - x) * splat8(parameters[1]) + linear;
    return x > 0 ? above : below;
}

// What the kind makes of eight numbers, and of their ups.
Float8 activated(const ActivationSource& source, Float8 x, Float8 up) {
    const Float8 seven = splat8(7.0f);
    switch (source.kind) {
        case ActivationSource::gated: return times_sigmoid(x, x) * up;
        case ActivationSource::gelu_gated: return gelu(x) * up;
        case ActivationSource::erf_gated: return erf_gelu(x) * up;
        case ActivationSource::clamped_gated: {
            x = seven < x ? seven : x;
            up = seven < up ? seven : up;
            up = -seven > up ? -seven : up;
            return times_sigmoid(x, x * splat8(1.702f)) * (up + splat8(1.0f));
        }
        case ActivationSource::silu: return times_sigmoid(x, x);
        case ActivationSource::gelu: return gelu(x);
        case ActivationSource::erf_gelu: return erf_gelu(x);
        case ActivationSource::relu_squared: {
            x = splat8(0.0f) > x ? splat8(0.0f) : x;
            return x * x;
        }
        default: return xielu(x, source.weight);
    }
}

void activate(const ActivationSource& source, const float* row, int64_t at, int count, float* made) {
    const bool gated = is_gated(source.kind);
    for (int i = 0; i < count; i += 8) {
        const size_t bytes = static_cast<size_t>(count - i < 8 ? count - i : 8) * sizeof(float);
        float x[8] = {}, up[8] = {};
        std::memcpy(x, row + at + i, bytes);
        if (gated) {
            std::memcpy(up, row + source.columns + at + i, bytes);
        }
        Float8 gates, ups;
        load8(gates, x);
        load8(ups, up);
        store8(x, activated(source, gates, ups));
        std::memcpy(made + i, x, bytes);
    }
}

// To nearest, ties to even.
float to_11_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return x;
    }
    bits = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
    std::memcpy(&x, &bits, sizeof(bits));
    return x;
}

// Numbers `at` to `at` + `count` - 1 of a row; where they lie, or in `made`.
const float* numbers_of(const ActivationSource& source, const float* row, const Scaling& scaling, int64_t at, int count, float* made) {
    switch (source.kind) {
        case ActivationSource::plain: return row + at;
        case ActivationSource::normed:
        case ActivationSource::layer_normed:
            for (int i = 0; i < count; ++i) {
                made[i] = (row[at + i] - scaling.mean) * scaling.factor * source.weight[at + i];
                made[i] = source.bias == nullptr ? made[i] : made[i] + source.bias[at + i];
            }
            return made;
        default: activate(source, row, at, count, made); return made;
    }
}

void write_row(const ActivationSource& source, ActivationForm form, const float* row, int64_t first, int64_t last, uint8_t* tile, int tokens,
               int token) {
    constexpr int most = kTogether * kBlock;
    const Scaling scaling = scaling_of(source, row);
    for (int64_t at = first; at < last; at += most) {
        const auto count = static_cast<int>(last - at < most ? last - at : most);
        float made[most];
        const float* numbers = numbers_of(source, row, scaling, at, count, made);
        if (form == ActivationForm::rounded) {
            quantize_blocks(numbers, count / kBlock, tile + static_cast<size_t>(at / kBlock) * kRoundedBytes * tokens, tokens, token);
            continue;
        }
        auto* out = reinterpret_cast<float*>(tile) + static_cast<size_t>(at) * tokens + token;
        for (int i = 0; i < count; ++i) {
            out[static_cast<size_t>(i) * tokens] = form == ActivationForm::shortened ? to_11_bits(numbers[i]) : numbers[i];
        }
    }
}

void write(const ActivationSource& source, ActivationForm form, int first_row, int tokens, int64_t first, int64_t last, uint8_t* tile) {
    for (int token = 0; token < tokens; ++token) {
        write_row(source, form, source.data + static_cast<size_t>(first_row + token) * source.stride, first, last, tile, tokens, token);
    }
}

// The nearest float16, ties to even, of a NaN or a number in its range.
uint16_t half_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return static_cast<uint16_t>(sign | kHalfNan | (size >> 13 & 0x3ffu));
    }
    if (size < 0x38800000u) {  // below its normal range, where its step is that of numbers from 0.5 to 1
        float shifted;
        std::memcpy(&shifted, &size, sizeof(size));
        shifted += 0.5f;
        std::memcpy(&size, &shifted, sizeof(size));
        return static_cast<uint16_t>(sign | (size - 0x3f000000u));
    }
    size += 0xfffu + (size >> 13 & 1);
    return static_cast<uint16_t>(sign | ((size - 0x38000000u) >> 13));
}

float clamped(float x, float most) { return x < -most ? -most : most < x ? most : x; }

void write_halves(const float* from, int count, uint16_t* to) {
    for (int i = 0; i < count; ++i) {
        to[i] = half_of(clamped(from[i], kLargestHalf));
    }
}

void spread_halves(const uint16_t* from, int positions, int count, uint16_t* to, size_t stride) {
    for (int i = 0; i < count; ++i) {
        for (int position = 0; position < positions; ++position) {
            to[static_cast<size_t>(i) * stride + position] = from[position * kHalvesWidth + i];
        }
    }
}

uint16_t write_bytes(const float* from, int count, int8_t* to, size_t stride) {
    float most = 0.0f;
    bool numbers = true;
    for (int i = 0; i < count; ++i) {
        most = std::fmax(most, std::fabs(from[i]));
        numbers = numbers && from[i] == from[i];
    }
    if (!numbers) {
        for (int i = 0; i < count; ++i) {
            to[static_cast<size_t>(i) * stride] = 0;
        }
        return kHalfNan;
    }
    const uint16_t scale[8] = {half_of(clamped(most, kLargestHalf) / kLargestByte)};
    Float8 step;
    load8(step, scale);
    const float inverse = step[0] > 0.0f ? 1.0f / step[0] : 0.0f;
    for (int i = 0; i < count; ++i) {
        const float x = clamped(clamped(from[i], kLargestHalf) * inverse, kLargestByte) + kMagic;
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof(bits));
        to[static_cast<size_t>(i) * stride] = static_cast<int8_t>(bits);
    }
    return scale[0];
}

}  // namespace

const RowKernels kPortableRows = {"portable", write, write_halves, spread_halves, write_bytes, weigh_portable, [] { return true; }};

}  // namespace tokenloom
