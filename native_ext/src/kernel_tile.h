// The multiplication kernels of all instruction sets, over what a set can do with one vector of rows.
//
// Included by one translation unit for each instruction set, and internal to it: a function shared with others would run
// with the instructions of whichever the linker kept. `V` is the instruction set:
//   kLanes rows in a vector; kGroups groups of rows at a time; kRounded, kWhole tokens at a time;
//   kStarts<bits>: whether sums of numbers of that many bits need the tile's start;
//   Int, Float: vectors; Weight<bits>: numbers made ready; Sum: what products are added to; and the functions used below.

#pragma once

#include "kernel_table.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

constexpr FormatTraits traits_of(PackedFormat format) { return kFormats[static_cast<int>(format)]; }

// The two k-groups of nibbles i of each vector of rows, ready to multiply.
template <class V, int bits, int R, int i>
TOKENLOOM_INLINE void read_pair(const uint8_t* const (&quants)[R], typename V::template Weight<bits> (&low)[R],
                                typename V::template Weight<bits> (&high)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const typename V::Int both = V::load(quants[r] + 64 * i);
        typename V::Int a = V::low(both);
        typename V::Int b = V::high(both);
        if constexpr (bits == 5) {
            const typename V::Int plane = V::load(quants[r] + 256);
            a = V::template set<4 - 2 * i, 0x10>(a, plane);
            b = V::template set<3 - 2 * i, 0x10>(b, plane);
        } else if constexpr (bits == 6) {
            const typename V::Int plane = V::load(quants[r] + 256 + 64 * (i / 2));
            a = V::template set<4 - 4 * (i % 2), 0x30>(a, plane);
            b = V::template set<2 - 4 * (i % 2), 0x30>(b, plane);
        }
        low[r] = V::template weight<bits>(a);
        high[r] = V::template weight<bits>(b);
    }
}

// Adds the products with a k-group of T tokens in tiles of S.
template <class V, int bits, int R, int T>
TOKENLOOM_INLINE void add_products(typename V::Sum (&sums)[R][T], const typename V::template Weight<bits> (&weights)[R],
                                   const int32_t* numbers) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const typename V::Int a = V::splat(numbers + t);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V::template add<bits>(sums[r][t], weights[r], a);
        }
    }
}

template <class V, int bits, int R, int T>
TOKENLOOM_INLINE void widen_sums(typename V::Sum (&sums)[R][T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V::template widen<bits>(sums[r][t]);
        }
    }
}

// Adds pair i, and those after it up to `end`.
template <class V, int bits, int R, int S, int T, int i, int end>
TOKENLOOM_INLINE void add_pairs(typename V::Sum (&sums)[R][T], const uint8_t* const (&quants)[R], const int32_t* numbers) {
    typename V::template Weight<bits> low[R];
    typename V::template Weight<bits> high[R];
    read_pair<V, bits, R, i>(quants, low, high);
    add_products<V, bits, R, T>(sums, low, numbers + 2 * i * S);
    add_products<V, bits, R, T>(sums, high, numbers + (2 * i + 1) * S);
    if constexpr (i + 1 == end || (i + 1) % V::template kPairs<bits> == 0) {
        widen_sums<V, bits, R, T>(sums);
    }
    if constexpr (i + 1 < end) {
        add_pairs<V, bits, R, S, T, i + 1, end>(sums, quants, numbers);
    }
}

template <class V, int R, int S, int T>
TOKENLOOM_INLINE void add_bytes(typename V::Sum (&sums)[R][T], const uint8_t* const (&quants)[R], const int32_t* numbers) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
        typename V::template Weight<8> weights[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            weights[r] = V::template weight<8>(V::load(quants[r] + 64 * j));
        }
        add_products<V, 8, R, T>(sums, weights, numbers + j * S);
        widen_sums<V, 8, R, T>(sums);
    }
}

// What the sums of a block, or of a half of one, start from.
template <class V, PackedFormat format, int half, int R, int S, int T>
TOKENLOOM_INLINE void start_sums(typename V::Sum (&sums)[R][T], const int32_t* starts) {
    constexpr FormatTraits traits = traits_of(format);
    constexpr int field = traits.halves ? 2 + half : traits.bits == 8 ? 1 : 0;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        typename V::Int start = V::zero();
        if constexpr (traits.offset != 0 && V::template kStarts<traits.bits>) {
            start = V::splat(starts + field * S + t);
            if constexpr (traits.bits == 5) {
                start = V::twice(start);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V::start(sums[r][t], start);
        }
    }
}

template <class V, int R, int T>
TOKENLOOM_INLINE void scale_sums(typename V::Float (&acc)[R][T], const typename V::Sum (&sums)[R][T], const float* scale,
                                 const uint16_t* const (&scales)[R], size_t at) {
    typename V::Float w[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        w[r] = V::halves(scales[r] + at);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const typename V::Float a = V::splat(scale + t);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            acc[r][t] = V::fma(V::mul(V::total(sums[r][t]), a), w[r], acc[r][t]);
        }
    }
}

// With few tokens memory is what kernels wait for. Each block then asks for the one that lies as many groups behind, whose
// turn comes next; arithmetic and transfers overlap.
template <int bytes>
TOKENLOOM_INLINE void fetch(const void* p, size_t behind) {
#pragma GCC unroll 8
    for (int at = 0; at < bytes; at += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + behind + at), 0, 2);
    }
}

// R vectors of rows by tokens `first` to `first` + T - 1 of a tile of S.
template <class V, PackedFormat format, int R, int S, int first, int T>
void multiply_rounded(const PackedGroup& group, const uint8_t* tile, float* out, size_t stride) {
    constexpr FormatTraits traits = traits_of(format);
    constexpr int vectors = kGroupRows / V::kLanes;  // of a group
    const uint8_t* quants[R];
    const uint16_t* scales[R];
    const uint16_t* minimums[R];
    typename V::Float acc[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const size_t block = static_cast<size_t>(r / vectors) * group.blocks;
        const int lane = r % vectors * V::kLanes;
        quants[r] = group.quants + block * traits.block_bytes + 4 * lane;
        scales[r] = group.scales + block * kGroupRows + lane;
        minimums[r] = traits.minimums || traits.halves ? group.minimums + block * kGroupRows + lane : nullptr;
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[r][t] = V::zeros();
        }
    }
    const size_t end = static_cast<size_t>(group.blocks) * kGroupRows;
    for (size_t at = 0; at < end; at += kGroupRows, tile += kRoundedBytes * S) {
        const auto* numbers = reinterpret_cast<const int32_t*>(tile) + first;  // four at a time
        const auto* scale = reinterpret_cast<const float*>(tile) + 8 * S + first;
        const float* scaled_sum = scale + S;
        const int32_t* starts = reinterpret_cast<const int32_t*>(tile) + 10 * S + first;
        if constexpr (S <= kFewTokens) {
#pragma GCC unroll 8
            for (int r = 0; r < R; r += vectors) {
                const size_t ahead = static_cast<size_t>(R / vectors) * group.blocks;
                fetch<traits.block_bytes>(quants[r], ahead * traits.block_bytes);
                fetch<2 * kGroupRows>(scales[r] + at, ahead * 2 * kGroupRows);
                if constexpr (traits.minimums || traits.halves) {
                    fetch<2 * kGroupRows>(minimums[r] + at, ahead * 2 * kGroupRows);
                }
            }
        }
        typename V::Sum sums[R][T];
        start_sums<V, format, 0, R, S, T>(sums, starts);
        if constexpr (traits.bits == 8) {
            add_bytes<V, R, S, T>(sums, quants, numbers);
        } else {
            add_pairs<V, traits.bits, R, S, T, 0, traits.halves ? 2 : 4>(sums, quants, numbers);
        }
        scale_sums<V, R, T>(acc, sums, scale, scales, at);
        if constexpr (traits.halves) {
            start_sums<V, format, 1, R, S, T>(sums, starts);
            add_pairs<V, traits.bits, R, S, T, 2, 4>(sums, quants, numbers);
            scale_sums<V, R, T>(acc, sums, scale, minimums, at);
        }
        if constexpr (traits.minimums) {
            typename V::Float m[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                m[r] = V::halves(minimums[r] + at);
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const typename V::Float a = V::splat(scaled_sum + t);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    acc[r][t] = V::fma(m[r], a, acc[r][t]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            quants[r] += traits.block_bytes;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            V::store(out + (first + t) * stride + r * V::kLanes, acc[r][t]);
        }
    }
}

template <class V, PackedFormat format, int R, int S, int first, int T>
void multiply_whole(const PackedGroup& group, const uint8_t* tile, float* out, size_t stride) {
    constexpr FormatTraits traits = traits_of(format);
    constexpr int vectors = kGroupRows / V::kLanes;
    constexpr int size = traits.bits / 8;
    const uint8_t* weights[R];
    typename V::Float acc[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        weights[r] = group.quants + static_cast<size_t>(r / vectors) * group.blocks * traits.block_bytes + r % vectors * V::kLanes * size;
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[r][t] = V::zeros();
        }
    }
    const size_t end = static_cast<size_t>(group.blocks) * traits.block_bytes;
    const auto* numbers = reinterpret_cast<const float*>(tile) + first;
#pragma GCC unroll 2
    for (size_t at = 0; at < end; at += traits.block_bytes, numbers += S) {
        typename V::Float w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            w[r] = V::template whole<format>(weights[r] + at);
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const typename V::Float a = V::splat(numbers + t);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                acc[r][t] = V::fma(w[r], a, acc[r][t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            V::store(out + (first + t) * stride + r * V::kLanes, acc[r][t]);
        }
    }
}

// Tokens from `first` on of a tile of S.
template <class V, PackedFormat format, int R, int S, int first = 0>
void multiply_tokens(const PackedGroup& group, const uint8_t* tile, float* out, size_t stride) {
    constexpr bool rounded = traits_of(format).scales;
    constexpr int most = rounded ? V::kRounded : V::kWhole;
    constexpr int parts = (S - first + most - 1) / most;
    constexpr int T = (S - first + parts - 1) / parts;
    if constexpr (rounded) {
        multiply_rounded<V, format, R, S, first, T>(group, tile, out, stride);
    } else {
        multiply_whole<V, format, R, S, first, T>(group, tile, out, stride);
    }
    if constexpr (first + T < S) {
        multiply_tokens<V, format, R, S, first + T>(group, tile, out, stride);
    }
}

template <class V, PackedFormat format, int R>
void multiply_groups(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride) {
    static_assert(kTileTokens == 6);
    switch (tokens) {
        case 1: multiply_tokens<V, format, R, 1>(group, tile, out, stride); break;
        case 2: multiply_tokens<V, format, R, 2>(group, tile, out, stride); break;
        case 3: multiply_tokens<V, format, R, 3>(group, tile, out, stride); break;
        case 4: multiply_tokens<V, format, R, 4>(group, tile, out, stride); break;
        case 5: multiply_tokens<V, format, R, 5>(group, tile, out, stride); break;
        default: multiply_tokens<V, format, R, 6>(group, tile, out, stride); break;
    }
}

template <class V, PackedFormat format>
void multiply_tile(const PackedGroup& first, int groups, const uint8_t* tile, int tokens, float* out, size_t stride) {
    constexpr FormatTraits traits = traits_of(format);
    constexpr int vectors = kGroupRows / V::kLanes;
    PackedGroup group = first;
    for (int done = 0; done < groups;) {
        int n = groups - done >= V::kGroups ? V::kGroups : 1;
        if (!traits.scales && V::kGroups == 1 && tokens == 1 && groups - done >= 2) {  // more chains, whose latencies overlap
            n = 2;
            if constexpr (!traits.scales) {
                multiply_tokens<V, format, 2 * vectors, 1>(group, tile, out, stride);
            }
        } else if (n == V::kGroups) {
            multiply_groups<V, format, V::kGroups * vectors>(group, tile, tokens, out, stride);
        } else {
            multiply_groups<V, format, vectors>(group, tile, tokens, out, stride);
        }
        done += n;
        out += n * kGroupRows;
        const size_t blocks = static_cast<size_t>(n) * group.blocks;
        group.quants += blocks * traits.block_bytes;
        if constexpr (traits.scales) {
            group.scales += blocks * kGroupRows;
        }
        if constexpr (traits.minimums || traits.halves) {
            group.minimums += blocks * kGroupRows;
        }
    }
}

template <class V>
constexpr Kernels make_kernels(const char* name, bool (*usable)()) {
    return {name,
            {multiply_tile<V, PackedFormat::nibbles_centred>, multiply_tile<V, PackedFormat::nibbles_minimum>,
             multiply_tile<V, PackedFormat::fives_centred>, multiply_tile<V, PackedFormat::fives_minimum>,
             multiply_tile<V, PackedFormat::sixes_halves>, multiply_tile<V, PackedFormat::bytes>, multiply_tile<V, PackedFormat::float16>,
             multiply_tile<V, PackedFormat::bfloat16>, multiply_tile<V, PackedFormat::float32>},
            usable};
}

}  // namespace

}  // namespace tokenloom
