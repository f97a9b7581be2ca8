// AMX int8: one instruction multiplies a block of up to 16 tokens with 16 rows.
//
// Tokens are arranged in panels of up to 16, as even as they can be: a tile's left operand is their numbers of a block, token
// after token. The right operand is k-groups of half a group's rows, just as packed_layout.h has them, once weights are
// unpacked to signed bytes: sums then start from zero, whatever the format. A block is all that one instruction adds up, since
// each has scales of its own. Its sums go through memory to the vectors of AVX-512, where 16 tokens' accumulators are in registers,
// each adding what packed_layout.h says in its order; meanwhile the tiles do the next block.
//
// Included by one translation unit with the CPU's tiles and by one with emulated ones (tile_ops.h), internal to each.

#pragma once

#include "kernels/avx512/kernel_avx512.h"
#include "kernels/amx/tile_ops.h"

namespace tokenloom {

namespace {

constexpr int kPanelTokens = 16;
// A panel's block: int8 [kPanelTokens][kBlock], float scale [kPanelTokens], float scale * sum [kPanelTokens].
constexpr int kPanelNumbers = kPanelTokens * kBlock;
constexpr int kPanelBytes = kPanelNumbers + 2 * 4 * kPanelTokens;
// Blocks that are unpacked at a time, for all tokens.
constexpr int kSegment = 16;
constexpr int kUnpackedBytes = kBlock * kGroupRows;

inline int panels_of(int tokens) { return (tokens + kPanelTokens - 1) / kPanelTokens; }
// Tokens of a panel, save for the last one which may have fewer. With kManyTokens or more it is at least kFewest.
inline int panel_height(int tokens) { return (tokens + panels_of(tokens) - 1) / panels_of(tokens); }
constexpr int kFewest = 11;
static_assert(kManyTokens == 32);

size_t arranged_bytes(int tokens, int blocks) { return static_cast<size_t>(panels_of(tokens)) * blocks * kPanelBytes; }

void arrange(const uint8_t* tile, int tile_tokens, int first, int tokens, int blocks, uint8_t* arranged) {
    const int height = panel_height(tokens);
    const auto block_of = [&](int token) { return arranged + static_cast<size_t>(token / height) * blocks * kPanelBytes; };
    // Two tokens' numbers at a time are chosen from the tile's dwords [8 k-groups][tokens], which take up to three vectors.
    constexpr int kPairs = kTileTokens / 2;
    __m512i from[kPairs];
    __mmask16 from_third[kPairs];
    for (int pair = 0; pair < kPairs; ++pair) {
        alignas(64) int32_t places[16];
        for (int lane = 0; lane < 16; ++lane) {
            const int token = 2 * pair + lane / 8;
            places[lane] = token < tile_tokens ? lane % 8 * tile_tokens + token : 0;
        }
        from[pair] = _mm512_load_si512(places);
        from_third[pair] = _mm512_cmpge_epi32_mask(from[pair], _mm512_set1_epi32(32));
    }
    const uint64_t there = (uint64_t{1} << 8 * tile_tokens) - 1;
    for (int b = 0; b < blocks; ++b, tile += kRoundedBytes * tile_tokens) {
        const __m512i one = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(there), tile);
        const __m512i two = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(there >> 16), tile + 64);
        const __m512i three = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(there >> 32), tile + 128);
        const auto* scales = reinterpret_cast<const float*>(tile) + 8 * tile_tokens;
        for (int pair = 0; 2 * pair < tile_tokens; ++pair) {
            const __m512i both = _mm512_mask_permutexvar_epi32(_mm512_permutex2var_epi32(one, from[pair], two), from_third[pair],
                                                               from[pair], three);
            const __m256i numbers[2] = {_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1)};
            for (int t = 2 * pair; t < tile_tokens && t < 2 * pair + 2; ++t) {
                uint8_t* const block = block_of(first + t) + static_cast<size_t>(b) * kPanelBytes;
                const int row = (first + t) % height;
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + row * kBlock), numbers[t % 2]);
                auto* out = reinterpret_cast<float*>(block + kPanelNumbers) + row;
                out[0] = scales[t];
                out[kPanelTokens] = scales[tile_tokens + t];
            }
        }
    }
    if (first + tile_tokens == tokens) {  // what the last panel lacks: numbers that nobody looks at
        for (int token = tokens; token < panels_of(tokens) * height; ++token) {
            for (int b = 0; b < blocks; ++b) {
                uint8_t* const block = block_of(token) + static_cast<size_t>(b) * kPanelBytes;
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + token % height * kBlock), _mm256_setzero_si256());
                auto* out = reinterpret_cast<float*>(block + kPanelNumbers) + token % height;
                out[0] = out[kPanelTokens] = 0.0f;
            }
        }
    }
}

// A block's numbers as signed bytes: eight vectors, one a k-group.
template <PackedFormat format, int i = 0>
TOKENLOOM_INLINE void unpack(const uint8_t* quants, uint8_t* out) {
    constexpr FormatTraits traits = traits_of(format);
    const __m512i offset = _mm512_set1_epi8(static_cast<char>(traits.offset));
    __m512i vectors[2][2];  // k-groups 2 * i and the next
    if constexpr (traits.bits == 8) {
        for (int r = 0; r < 2; ++r) {
            vectors[0][r] = Vnni::load(quants + kVectorBytes * 2 * i + 64 * r);
            vectors[1][r] = Vnni::load(quants + kVectorBytes * (2 * i + 1) + 64 * r);
        }
    } else {
        read_pair<Vnni, traits.bits, 2, i>(quants, vectors[0], vectors[1]);
    }
    for (int j = 0; j < 2; ++j) {
        for (int r = 0; r < 2; ++r) {
            _mm512_store_si512(out + kVectorBytes * (2 * i + j) + 64 * r, _mm512_sub_epi8(vectors[j][r], offset));
        }
    }
    if constexpr (i < 3) {
        unpack<format, i + 1>(quants, out);
    }
}

// The sums of a block of T tokens and 16 rows; of each half of one where these have scales of their own.
template <PackedFormat format, int T>
struct Sums {
    alignas(64) int32_t of[traits_of(format).halves ? 2 : 1][T][16];
};

// `unpacked`: from the first of the 16 rows on.
template <PackedFormat format, int T, int set>
TOKENLOOM_INLINE void multiply_block(const uint8_t* panel, const uint8_t* unpacked, Sums<format, T>& out) {
    const auto multiply = [&]<int tiles>(const uint8_t* left, const uint8_t* right, int32_t* sums) {
        using Set = Tiles::Set<tiles>;
        Set::clear_sums();
        Set::load_left(left, kBlock);
        Set::load_right(right, kVectorBytes);
        Set::add_products();
        Set::store_sums(sums, 64);
    };
    if constexpr (traits_of(format).halves) {
        multiply.template operator()<0>(panel, unpacked, out.of[0][0]);
        multiply.template operator()<1>(panel + kBlock / 2, unpacked + kUnpackedBytes / 2, out.of[1][0]);
    } else {
        multiply.template operator()<set>(panel, unpacked, out.of[0][0]);
    }
}

// `second`: the block's second scales of the 16 rows; scales lie before.
template <PackedFormat format, int T>
TOKENLOOM_INLINE void scale_block(const Sums<format, T>& sums, const uint8_t* panel, const uint8_t* second, __m512 (&acc)[T]) {
    constexpr FormatTraits traits = traits_of(format);
    const auto* scale = reinterpret_cast<const float*>(panel + kPanelNumbers);
    const __m512 w = Vnni::halves(reinterpret_cast<const uint16_t*>(second) - kGroupRows);
    __m512 w2 = w;
    if constexpr (traits.second()) {
        w2 = Vnni::halves(reinterpret_cast<const uint16_t*>(second));
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        const __m512 a = Vnni::splat(scale + t);
        const auto add = [&](const int32_t* sum, __m512 factor) {
            acc[t] = Vnni::fma(Vnni::mul(_mm512_cvtepi32_ps(_mm512_load_si512(sum)), a), factor, acc[t]);
        };
        add(sums.of[0][t], w);
        if constexpr (traits.halves) {
            add(sums.of[1][t], w2);
        }
        if constexpr (traits.minimums) {
            acc[t] = Vnni::fma(w2, Vnni::splat(scale + kPanelTokens + t), acc[t]);
        }
    }
}

// A panel's `tokens` (T, or fewer in the last panel) by half a group, over a segment of blocks; adds to what is in `out` unless it
// is the first segment.
template <PackedFormat format, int T>
void multiply_panel(const uint8_t* unpacked, const uint8_t* second, int blocks, const uint8_t* panel, int tokens, bool first, float* out,
                    size_t stride, Fetching& fetching) {
    constexpr int block_bytes = traits_of(format).block_bytes();
    __m512 acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        acc[t] = first || t >= tokens ? Vnni::zeros() : _mm512_loadu_ps(out + t * stride);
    }
    Sums<format, T> even, odd;
    const auto panel_of = [&](int b) { return panel + static_cast<size_t>(b) * kPanelBytes; };
    multiply_block<format, T, 0>(panel, unpacked, even);
    for (int b = 0; b < blocks; b += 2) {
        const bool another = b + 1 < blocks;
        fetching.go_on();
        if (another) {
            multiply_block<format, T, 1>(panel_of(b + 1), unpacked + (b + 1) * kUnpackedBytes, odd);
        }
        scale_block<format, T>(even, panel_of(b), second + static_cast<size_t>(b) * block_bytes, acc);
        if (b + 2 < blocks) {
            multiply_block<format, T, 0>(panel_of(b + 2), unpacked + (b + 2) * kUnpackedBytes, even);
        }
        if (another) {
            scale_block<format, T>(odd, panel_of(b + 1), second + static_cast<size_t>(b + 1) * block_bytes, acc);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        if (t < tokens) {
            _mm512_storeu_ps(out + t * stride, acc[t]);
        }
    }
}

template <PackedFormat format, int T>
void multiply_panels(const PackedGroup& group, const uint8_t* arranged, int tokens, float* out, size_t stride, Fetch fetch) {
    constexpr FormatTraits traits = traits_of(format);
    Fetching fetching(fetch, panels_of(tokens) * group.blocks);  // half as often for each half of the rows
    alignas(64) uint8_t unpacked[kSegment * kUnpackedBytes];
    for (int begin = 0; begin < group.blocks; begin += kSegment) {
        const int blocks = group.blocks - begin < kSegment ? group.blocks - begin : kSegment;
        const uint8_t* weights = group.data + static_cast<size_t>(begin) * traits.block_bytes();
        for (int b = 0; b < blocks; ++b) {
            unpack<format>(weights + static_cast<size_t>(b) * traits.block_bytes(), unpacked + b * kUnpackedBytes);
        }
        for (int panel = 0; panel < panels_of(tokens); ++panel) {
            const uint8_t* numbers = arranged + (static_cast<size_t>(panel) * group.blocks + begin) * kPanelBytes;
            const int left = tokens - panel * T;
            for (int half = 0; half < 2; ++half) {
                multiply_panel<format, T>(unpacked + 64 * half, weights + traits.second_at() + 32 * half, blocks, numbers,
                                          left < T ? left : T, begin == 0, out + static_cast<size_t>(panel) * T * stride + 16 * half, stride, fetching);
            }
        }
    }
}

template <PackedFormat format>
void multiply_many(const PackedGroup& group, const uint8_t* arranged, int tokens, float* out, size_t stride, Fetch fetch) {
    static_assert(kFewest == 11 && kPanelTokens == 16);
    const int height = panel_height(tokens);
    Tiles::configure(height, traits_of(format).halves ? kBlock / 8 : kBlock / 4);
    switch (height) {
        case 11: multiply_panels<format, 11>(group, arranged, tokens, out, stride, fetch); break;
        case 12: multiply_panels<format, 12>(group, arranged, tokens, out, stride, fetch); break;
        case 13: multiply_panels<format, 13>(group, arranged, tokens, out, stride, fetch); break;
        case 14: multiply_panels<format, 14>(group, arranged, tokens, out, stride, fetch); break;
        case 15: multiply_panels<format, 15>(group, arranged, tokens, out, stride, fetch); break;
        default: multiply_panels<format, 16>(group, arranged, tokens, out, stride, fetch); break;
    }
    Tiles::release();
}

constexpr ManyTokens kTiles = {arranged_bytes,
                               arrange,
                               {multiply_many<PackedFormat::nibbles_centred>, multiply_many<PackedFormat::nibbles_minimum>,
                                multiply_many<PackedFormat::fives_centred>, multiply_many<PackedFormat::fives_minimum>,
                                multiply_many<PackedFormat::sixes_halves>, multiply_many<PackedFormat::bytes>, nullptr, nullptr, nullptr}};

// Tiles one by one are for AVX-512 VNNI; called by way of its table, so that this one is a constant.
template <int format>
void multiply_one(const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch fetch) {
    kVnniKernels.multiply[format](group, tile, tokens, out, stride, fetch);
}

constexpr Kernels make_amx_kernels(const char* name, bool (*usable)(), Choice choice) {
    return {name,
            {multiply_one<0>, multiply_one<1>, multiply_one<2>, multiply_one<3>, multiply_one<4>, multiply_one<5>, multiply_one<6>,
             multiply_one<7>, multiply_one<8>},
            usable,
            choice,
            &kTiles};
}

}  // namespace

}  // namespace tokenloom
