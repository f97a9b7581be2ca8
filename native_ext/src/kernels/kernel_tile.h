// The multiplication kernels of all instruction sets, over what a set can do with one vector of rows.
//
// Included by one translation unit for each instruction set, and internal to it: a function shared with others would run
// with the instructions of whichever the linker kept. `V` is the instruction set:
//   kLanes rows in a vector; kVectors vectors of rows at a time; kRounded, kWhole tokens at a time;
//   kStarts<bits>: whether sums of numbers of that many bits need the tile's start;
//   Int, Float: vectors; Weight<bits>: numbers made ready; Sum: what products are added to; and the functions used below.

#pragma once

#include "kernels/kernel_table.h"

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

constexpr FormatTraits traits_of(PackedFormat format) { return kFormats[static_cast<int>(format)]; }

// The two k-groups of nibbles i of each vector of rows, ready to multiply.
template <class V, int bits, int R, int i>
TOKENLOOM_INLINE void read_pair(const uint8_t* quants, typename V::template Weight<bits> (&low)[R],
                                typename V::template Weight<bits> (&high)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const uint8_t* rows = quants + 4 * V::kLanes * r;
        const typename V::Int both = V::load(rows + kVectorBytes * i);
        typename V::Int a = V::low(both);
        typename V::Int b = V::high(both);
        if constexpr (bits == 5) {
            const typename V::Int plane = V::load(rows + kVectorBytes * 4);
            a = V::template set<4 - 2 * i, 0x10>(a, plane);
            b = V::template set<3 - 2 * i, 0x10>(b, plane);
        } else if constexpr (bits == 6) {
            const typename V::Int plane = V::load(rows + kVectorBytes * (4 + i / 2));
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
TOKENLOOM_INLINE void add_pairs(typename V::Sum (&sums)[R][T], const uint8_t* quants, const int32_t* numbers) {
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
TOKENLOOM_INLINE void add_bytes(typename V::Sum (&sums)[R][T], const uint8_t* quants, const int32_t* numbers) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
        typename V::template Weight<8> weights[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            weights[r] = V::template weight<8>(V::load(quants + 4 * V::kLanes * r + kVectorBytes * j));
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
                                 const uint16_t* scales) {
    typename V::Float w[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        w[r] = V::halves(scales + V::kLanes * r);
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

// Asks for what comes next, as many lines for each block.
class Fetching {
public:
    TOKENLOOM_INLINE Fetching(Fetch fetch, int blocks)
        : next_(fetch.begin), end_(fetch.end), lines_(static_cast<int>(((fetch.end - fetch.begin) / 64 + blocks - 1) / blocks)) {}
    TOKENLOOM_INLINE void go_on() {
        if (next_ < end_) {
            for (int i = 0; i < lines_; ++i) {
                __builtin_prefetch(next_ + 64 * i, 0, 2);
            }
            next_ += 64 * lines_;
        }
    }

private:
    const uint8_t* next_;
    const uint8_t* end_;
    int lines_;
};

// R vectors of rows from row `lane` on, by tokens `first` to `first` + T - 1 of a tile of S.
template <class V, PackedFormat format, int R, int S, int first, int T>
void multiply_rounded(const PackedGroup& group, int lane, const uint8_t* tile, float* out, size_t stride, Fetch fetch) {
    constexpr FormatTraits traits = traits_of(format);
    typename V::Float acc[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[r][t] = V::zeros();
        }
    }
    Fetching fetching(fetch, group.blocks);
    const uint8_t* quants = group.data + 4 * lane;
    const uint8_t* second = group.data + traits.second_at() + 2 * lane;  // also of scales, which lie before
    const uint8_t* const end = quants + static_cast<size_t>(group.blocks) * traits.block_bytes();
    for (; quants < end; quants += traits.block_bytes(), second += traits.block_bytes(), tile += kRoundedBytes * S) {
        const auto* numbers = reinterpret_cast<const int32_t*>(tile) + first;  // four at a time
        const auto* scale = reinterpret_cast<const float*>(tile) + 8 * S + first;
        const float* scaled_sum = scale + S;
        const int32_t* starts = reinterpret_cast<const int32_t*>(tile) + 10 * S + first;
        const auto* scales = reinterpret_cast<const uint16_t*>(second) - kGroupRows;
        const auto* minimums = reinterpret_cast<const uint16_t*>(second);
        fetching.go_on();
        typename V::Sum sums[R][T];
        start_sums<V, format, 0, R, S, T>(sums, starts);
        if constexpr (traits.bits == 8) {
            add_bytes<V, R, S, T>(sums, quants, numbers);
        } else {
            add_pairs<V, traits.bits, R, S, T, 0, traits.halves ? 2 : 4>(sums, quants, numbers);
        }
        scale_sums<V, R, T>(acc, sums, scale, scales);
        if constexpr (traits.halves) {
            start_sums<V, format, 1, R, S, T>(sums, starts);
            add_pairs<V, traits.bits, R, S, T, 2, 4>(sums, quants, numbers);
            scale_sums<V, R, T>(acc, sums, scale, minimums);
        }
        if constexpr (traits.minimums) {
            typename V::Float m[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                m[r] = V::halves(minimums + V::kLanes * r);
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
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            V::store(out + (first + t) * stride + lane + r * V::kLanes, acc[r][t]);
        }
    }
}

template <class V, PackedFormat format, int R, int S, int first, int T>
void multiply_whole(const PackedGroup& group, int lane, const uint8_t* tile, float* out, size_t stride, Fetch fetch) {
    constexpr FormatTraits traits = traits_of(format);
    constexpr int size = traits.bits / 8;
    typename V::Float acc[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            acc[r][t] = V::zeros();
        }
    }
    Fetching fetching(fetch, group.blocks);
    const uint8_t* weights = group.data + lane * size;
    const uint8_t* const end = weights + static_cast<size_t>(group.blocks) * traits.block_bytes();
    const auto* numbers = reinterpret_cast<const float*>(tile) + first;
#pragma GCC unroll 2
    for (; weights < end; weights += traits.block_bytes(), numbers += S) {
        fetching.go_on();
        typename V::Float w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            w[r] = V::template whole<format>(weights + V::kLanes * r * size);
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
            V::store(out + (first + t) * stride + lane + r * V::kLanes, acc[r][t]);
        }
    }
}

// Tokens from `first` on of a tile of S.
template <class V, PackedFormat format, int R, int S, int first = 0>
void multiply_tokens(const PackedGroup& group, int lane, const uint8_t* tile, float* out, size_t stride, Fetch fetch) {
    constexpr bool rounded = traits_of(format).scales;
    constexpr int most = rounded ? V::kRounded : V::kWhole;
    constexpr int parts = (S - first + most - 1) / most;
    constexpr int T = (S - first + parts - 1) / parts;
    if constexpr (rounded) {
        multiply_rounded<V, format, R, S, first, T>(group, lane, tile, out, stride, fetch);
    } else {
        multiply_whole<V, format, R, S, first, T>(group, lane, tile, out, stride, fetch);
    }
    if constexpr (first + T < S) {
        multiply_tokens<V, format, R, S, first + T>(group, lane, tile, out, stride, {});
    }
}

template <class V, PackedFormat format, int S>
void multiply_group(const PackedGroup& group, const uint8_t* tile, float* out, size_t stride, Fetch fetch) {
    // With one token more chains of sums, whose latencies overlap.
    constexpr int R = !traits_of(format).scales && S == 1 ? 2 * V::kVectors : V::kVectors;
    constexpr int vectors = R * V::kLanes <= kGroupRows ? R : kGroupRows / V::kLanes;
    for (int lane = 0; lane < kGroupRows; lane += vectors * V::kLanes) {
        multiply_tokens<V, format, vectors, S>(group, lane, tile, out, stride, lane == 0 ? fetch : Fetch{});
    }
}

template <class V, PackedFormat format>
void multiply_tile(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch fetch) {
    static_assert(kTileTokens == 6);
    switch (tokens) {
        case 1: multiply_group<V, format, 1>(group, tile, out, stride, fetch); break;
        case 2: multiply_group<V, format, 2>(group, tile, out, stride, fetch); break;
        case 3: multiply_group<V, format, 3>(group, tile, out, stride, fetch); break;
        case 4: multiply_group<V, format, 4>(group, tile, out, stride, fetch); break;
        case 5: multiply_group<V, format, 5>(group, tile, out, stride, fetch); break;
        default: multiply_group<V, format, 6>(group, tile, out, stride, fetch); break;
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
