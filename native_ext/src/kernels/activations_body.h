// Making tiles of activations (row_kernels.h), over `Vector`: what an instruction set can do with a vector of float32 or int32,
// which the including file defines, in an unnamed namespace. Included by one translation unit for each set, and internal to it.
//
//     lanes, Float, Int, Mask                             8 or 16; the vectors, and what comparisons give
//     together                                            how many of them are gated at once, so that they fit the registers
//     all(x), load(p), load(p, n)                         of the latter only n numbers, 0 behind them
//     store(p, v), add, sub, mul, div, greater(a, b)      greater: a > b ? a : b
//     bits(v), floats(i), rounded(v)                      as they are; to the nearest integers, ties to even
//     ints(n), largest(a, b), plus(a, b), both(a, b), either(a, b), left<n>(i), right<n>(i)    of int32 lanes
//     below(a, b), negative(v), zero_where(m, v), choose(m, a, b)    negative: by the sign; choose: m ? a : b
//     low32(a, b), high32(a, b), low64(a, b), high64(a, b)           unpack within each 128 bits
//     narrow32(a, b), narrow16(a, b)                                 pack, saturated, within each 128 bits
//     add_lanes(i), largest_lanes(i)                                 across the vector's parts of 128 bits, lane by lane
//     fold(v)                                                        of 16 lanes, lane i and i + 8 added, from one or two vectors
//     sums_of_four(i)                                                of the four int8 in each lane
//     write<T>(p, low, high)                                         see write_numbers() below
//
// All tokens of a tile go together. 128 bits hold a k-group as int32; narrowed together with those of three other tokens they
// are what the tile holds of that k-group, and maxima and sums end with one token a lane, as the tile has them as well.

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

using Float = Vector::Float;
using Int = Vector::Int;

constexpr int kBlockVectors = kBlock / Vector::lanes;
constexpr float kLowestExponent = -87.0f;
constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even

// N vectors at once, each step of all before the next: one vector's steps wait for each other, and what a CPU looks ahead is too
// little to have enough others under way.
template <int N, typename Step>
TOKENLOOM_INLINE void each(const Step& step) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        step(i);
    }
}

// exp8() of vector8.h.
template <int N>
TOKENLOOM_INLINE void exponentials(const Float (&given)[N], Float (&out)[N]) {
    Float x[N], shifted[N], n[N], r[N];
    each<N>([&](int i) { x[i] = Vector::greater(Vector::all(kLowestExponent), given[i]); });
    each<N>([&](int i) { shifted[i] = Vector::add(Vector::mul(x[i], Vector::all(1.44269504f)), Vector::all(kShift)); });
    each<N>([&](int i) { n[i] = Vector::sub(shifted[i], Vector::all(kShift)); });
    each<N>([&](int i) { r[i] = Vector::sub(x[i], Vector::mul(n[i], Vector::all(0.693359375f))); });
    each<N>([&](int i) { r[i] = Vector::sub(r[i], Vector::mul(n[i], Vector::all(-2.12194440e-4f))); });
    Float p[N];
    each<N>([&](int i) { p[i] = Vector::add(Vector::mul(r[i], Vector::all(1.0f / 5040)), Vector::all(1.0f / 720)); });
    constexpr float terms[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
#pragma GCC unroll 6
    for (int term = 0; term < 6; ++term) {
        each<N>([&](int i) { p[i] = Vector::add(Vector::mul(p[i], r[i]), Vector::all(terms[term])); });
    }
    each<N>([&](int i) {
        const Int bits = Vector::plus(Vector::bits(p[i]), Vector::template left<23>(Vector::bits(shifted[i])));
        out[i] = Vector::zero_where(Vector::below(given[i], Vector::all(kLowestExponent)), Vector::floats(bits));
    });
}

// x / (1 + e^-y).
template <int N>
TOKENLOOM_INLINE void times_sigmoid(const Float (&x)[N], const Float (&y)[N], Float (&out)[N]) {
    Float e[N], negative[N];
    each<N>([&](int i) { negative[i] = Vector::floats(Vector::either(Vector::bits(y[i]), Vector::ints(INT32_MIN))); });
    exponentials(negative, e);
    const Float one = Vector::all(1.0f);
    each<N>([&](int i) {
        const Float numerator = Vector::mul(x[i], Vector::choose(Vector::negative(y[i]), e[i], one));
        out[i] = Vector::div(numerator, Vector::add(one, e[i]));
    });
}

template <int N>
TOKENLOOM_INLINE void gelu(const Float (&x)[N], Float (&out)[N]) {
    Float y[N];
    each<N>([&](int i) {
        const Float inner = Vector::add(Vector::mul(Vector::mul(x[i], x[i]), Vector::all(0.044715f)), Vector::all(1.0f));
        y[i] = Vector::mul(Vector::mul(x[i], inner), Vector::all(1.59576912f));
    });
    times_sigmoid(x, y, out);
}

template <int N>
TOKENLOOM_INLINE void erf_gelu(const Float (&x)[N], Float (&out)[N]) {
    Float a[N], p[N], square[N], e[N];
    each<N>([&](int i) {
        const Float size = Vector::floats(Vector::both(Vector::bits(x[i]), Vector::ints(INT32_MAX)));
        a[i] = Vector::mul(size, Vector::all(0.707106781f));
        square[i] = Vector::sub(Vector::all(0.0f), Vector::mul(a[i], a[i]));
        a[i] = Vector::div(Vector::all(1.0f), Vector::add(Vector::mul(a[i], Vector::all(0.3275911f)), Vector::all(1.0f)));
        p[i] = Vector::all(1.061405429f);
    });
    constexpr float terms[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f};
#pragma GCC unroll 5
    for (int term = 0; term < 5; ++term) {
        each<N>([&](int i) { p[i] = Vector::add(Vector::mul(p[i], a[i]), Vector::all(terms[term])); });
    }
    exponentials(square, e);
    each<N>([&](int i) {
        const Float tail = Vector::mul(Vector::mul(p[i], e[i]), Vector::all(0.5f));
        out[i] = Vector::mul(x[i], Vector::choose(Vector::negative(x[i]), tail, Vector::sub(Vector::all(1.0f), tail)));
    });
}

template <int N>
TOKENLOOM_INLINE void xielu(const ActivationSource& source, const Float (&x)[N], Float (&out)[N]) {
    const Float p = Vector::all(source.weight[0]), n = Vector::all(source.weight[1]), beta = Vector::all(source.weight[2]);
    Float capped[N], e[N];
    each<N>([&](int i) { capped[i] = Vector::less(Vector::all(source.weight[3]), x[i]); });
    exponentials(capped, e);
    each<N>([&](int i) {
        const Float linear = Vector::mul(beta, x[i]);
        const Float above = Vector::add(Vector::mul(Vector::mul(p, x[i]), x[i]), linear);
        const Float below = Vector::add(Vector::mul(Vector::sub(Vector::sub(e[i], Vector::all(1.0f)), x[i]), n), linear);
        out[i] = Vector::choose(Vector::below(Vector::all(0.0f), x[i]), above, below);
    });
}

// What the kind makes of gates and ups.
template <int kind, int N>
TOKENLOOM_INLINE void gated(const Float (&gate)[N], const Float (&up)[N], Float (&out)[N]) {
    if constexpr (kind == ActivationSource::gated) {
        times_sigmoid(gate, gate, out);
    } else if constexpr (kind == ActivationSource::gelu_gated) {
        gelu(gate, out);
    } else if constexpr (kind == ActivationSource::erf_gated) {
        erf_gelu(gate, out);
    } else {
        Float g[N], y[N];
        each<N>([&](int i) { g[i] = Vector::less(Vector::all(7.0f), gate[i]); });
        each<N>([&](int i) { y[i] = Vector::mul(g[i], Vector::all(1.702f)); });
        times_sigmoid(g, y, out);
        each<N>([&](int i) {
            const Float u = Vector::greater(Vector::all(-7.0f), Vector::less(Vector::all(7.0f), up[i]));
            out[i] = Vector::mul(out[i], Vector::add(u, Vector::all(1.0f)));
        });
        return;
    }
    each<N>([&](int i) { out[i] = Vector::mul(out[i], up[i]); });
}

// What the kind makes of numbers without a gate.
template <int kind, int N>
TOKENLOOM_INLINE void activated(const ActivationSource& source, const Float (&x)[N], Float (&out)[N]) {
    if constexpr (kind == ActivationSource::silu) {
        times_sigmoid(x, x, out);
    } else if constexpr (kind == ActivationSource::gelu) {
        gelu(x, out);
    } else if constexpr (kind == ActivationSource::erf_gelu) {
        erf_gelu(x, out);
    } else if constexpr (kind == ActivationSource::relu_squared) {
        each<N>([&](int i) { out[i] = Vector::greater(Vector::all(0.0f), x[i]); });
        each<N>([&](int i) { out[i] = Vector::mul(out[i], out[i]); });
    } else {
        xielu(source, x, out);
    }
}

// What a norm does to a row: (x - mean) * factor.
struct Scaling {
    float mean;
    float factor;
};

// To nearest, ties to even.
TOKENLOOM_INLINE Float to_11_bits(Float x) {
    const Int bits = Vector::bits(x);
    const Int odd = Vector::both(Vector::template right<13>(bits), Vector::ints(1));
    const Int rounded = Vector::both(Vector::plus(Vector::plus(bits, Vector::ints(0xfff)), odd), Vector::ints(~0x1fff));
    const Float size = Vector::floats(Vector::both(bits, Vector::ints(INT32_MAX)));
    return Vector::choose(Vector::below(size, Vector::all(__builtin_inff())), Vector::floats(rounded), x);
}

// N vectors of numbers, of columns at[i] onwards of rows[i], which load(p) loads.
template <int kind, int N, typename Load>
TOKENLOOM_INLINE void make(const ActivationSource& source, const float* const (&rows)[N], const int64_t (&at)[N], const Scaling (&scaling)[N],
                           const Load& load, Float (&out)[N]) {
    each<N>([&](int i) { out[i] = load(rows[i] + at[i]); });
    if constexpr (kind == ActivationSource::normed) {
        each<N>([&](int i) { out[i] = Vector::mul(Vector::mul(out[i], Vector::all(scaling[i].factor)), load(source.weight + at[i])); });
    } else if constexpr (kind == ActivationSource::layer_normed) {
        each<N>([&](int i) {
            const Float centred = Vector::sub(out[i], Vector::all(scaling[i].mean));
            out[i] = Vector::mul(Vector::mul(centred, Vector::all(scaling[i].factor)), load(source.weight + at[i]));
            out[i] = source.bias == nullptr ? out[i] : Vector::add(out[i], load(source.bias + at[i]));
        });
    } else if constexpr (is_gated(static_cast<ActivationSource::Kind>(kind))) {
        Float gate[N], up[N];
        each<N>([&](int i) { gate[i] = out[i]; });
        each<N>([&](int i) { up[i] = load(rows[i] + source.columns + at[i]); });
        gated<kind>(gate, up, out);
    } else if constexpr (kind != ActivationSource::plain) {
        Float x[N];
        each<N>([&](int i) { x[i] = out[i]; });
        activated<kind>(source, x, out);
    }
}

// Of 16 lanes.
TOKENLOOM_INLINE float tree(__m256 eight) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Means of T rows, of (x - their means before)^2 if `squares`; summed in 16 lanes and these in a fixed tree.
template <bool squares, bool centred, int T>
TOKENLOOM_INLINE void means(const ActivationSource& source, const float* const (&row)[T], const Scaling (&before)[T], float (&out)[T]) {
    constexpr int parts = 16 / Vector::lanes;
    Float sums[T][parts];
    const auto add = [&](int t, int part, Float v) {
        if constexpr (squares) {
            v = centred ? Vector::sub(v, Vector::all(before[t].mean)) : v;
            v = Vector::mul(v, v);
        }
        sums[t][part] = Vector::add(sums[t][part], v);
    };
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
            sums[t][part] = Vector::all(0.0f);
        }
    }
    int64_t i = 0;
    for (; i + 16 <= source.columns; i += 16) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
            for (int part = 0; part < parts; ++part) {
                add(t, part, Vector::load(row[t] + i + part * Vector::lanes));
            }
        }
    }
    for (int part = 0; part < parts && i < source.columns; ++part, i += Vector::lanes) {
        const int64_t rest = source.columns - i;
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const int count = rest < Vector::lanes ? static_cast<int>(rest) : Vector::lanes;
            Float v = Vector::load(row[t] + i, count);
            if constexpr (centred) {  // lanes behind the row are 0
                float lanes[Vector::lanes];
                Vector::store(lanes, Vector::sub(v, Vector::all(before[t].mean)));
                v = Vector::load(lanes, count);
                sums[t][part] = Vector::add(sums[t][part], Vector::mul(v, v));
            } else {
                add(t, part, v);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        out[t] = tree(Vector::fold(sums[t])) / static_cast<float>(source.columns);
    }
}

// What the kind's norm does to T rows.
template <int kind, int T>
TOKENLOOM_INLINE void scalings(const ActivationSource& source, const float* const (&row)[T], Scaling (&out)[T]) {
    constexpr bool layer = kind == ActivationSource::layer_normed;
    if constexpr (layer || kind == ActivationSource::normed) {
        float found[T];
        if constexpr (layer) {
            means<false, false>(source, row, out, found);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                out[t].mean = found[t];
            }
        }
        means<true, layer>(source, row, out, found);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            out[t].factor = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(found[t] + source.epsilon)));
        }
    }
}

TOKENLOOM_INLINE __m256i joined(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

// Four tokens' largest numbers, one a lane; of tokens the tile has not, the last one's.
template <int T>
TOKENLOOM_INLINE __m128i largest_of_four(const Int (&most)[T], int first) {
    const auto pair = [&](int a, int b) {
        const Int one = most[a < T ? a : T - 1];
        const Int other = most[b < T ? b : T - 1];
        return Vector::largest(Vector::low32(one, other), Vector::high32(one, other));
    };
    const Int near = pair(first, first + 1);
    const Int far = pair(first + 2, first + 3);
    return Vector::largest_lanes(Vector::largest(Vector::low64(near, far), Vector::high64(near, far)));
}

// The first T lanes, and nothing else.
template <int T>
TOKENLOOM_INLINE void write_lanes(uint8_t* to, __m256i lanes) {
    const __m128i low = _mm256_castsi256_si128(lanes);
    const __m128i high = _mm256_extracti128_si256(lanes, 1);
    const auto write = [](uint8_t* at, int count, __m128i v) {
        switch (count) {
            case 1: __builtin_memcpy(at, &v, 4); break;
            case 2: __builtin_memcpy(at, &v, 8); break;
            case 3: {
                const int32_t last = _mm_extract_epi32(v, 2);
                __builtin_memcpy(at, &v, 8);
                __builtin_memcpy(at + 8, &last, 4);
                break;
            }
            default: __builtin_memcpy(at, &v, 16); break;
        }
    };
    write(to, T < 4 ? T : 4, low);
    if constexpr (T > 4) {
        write(to + 16, T - 4, high);
    }
}

// What one vector of each token has become: `low` has in each 128 bits a k-group of tokens 0 to 3, `high` of tokens 4 and 5, twice.
template <int T>
TOKENLOOM_INLINE void narrow(const Int (&numbers)[T][kBlockVectors], int v, Int& low, Int& high) {
    const auto pair = [&](int a, int b) { return Vector::narrow32(numbers[a][v], numbers[b][v]); };
    const Int first = T == 1 ? pair(0, 0) : pair(0, T > 1 ? 1 : 0);
    const Int second = T == 3 ? pair(T - 1, T - 1) : T > 3 ? pair(2 % T, 3 % T) : first;
    low = Vector::narrow16(first, second);
    if constexpr (T > 4) {
        const Int third = pair(4, T - 1);
        high = Vector::narrow16(third, third);
    } else {
        high = low;
    }
}

template <int T>
TOKENLOOM_INLINE void write_block(Float (&x)[T][kBlockVectors], uint8_t* out) {
    // Magnitudes compare as integers, and a NaN is above all of them.
    Int most[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        most[t] = Vector::both(Vector::bits(x[t][0]), Vector::ints(INT32_MAX));
#pragma GCC unroll 4
        for (int v = 1; v < kBlockVectors; ++v) {
            most[t] = Vector::largest(most[t], Vector::both(Vector::bits(x[t][v]), Vector::ints(INT32_MAX)));
        }
    }
    __m256i largest = joined(largest_of_four<T>(most, 0), _mm_setzero_si128());
    if constexpr (T > 4) {
        largest = joined(_mm256_castsi256_si128(largest), largest_of_four<T>(most, 4));
    }
    const __m256 magnitudes = _mm256_castsi256_ps(largest);
    const __m256 whole = _mm256_cmp_ps(magnitudes, _mm256_set1_ps(kSmallestBlock), _CMP_NLT_UQ);
    __m256 scales = _mm256_and_ps(whole, _mm256_div_ps(magnitudes, _mm256_set1_ps(127.0f)));
    alignas(32) float inverses[8];
    _mm256_store_ps(inverses, _mm256_and_ps(whole, _mm256_div_ps(_mm256_set1_ps(127.0f), magnitudes)));

    Int numbers[T][kBlockVectors];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        const Float inverse = Vector::all(inverses[t]);
#pragma GCC unroll 4
        for (int v = 0; v < kBlockVectors; ++v) {
            numbers[t][v] = Vector::rounded(Vector::mul(x[t][v], inverse));
        }
    }
    const int infinite = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7f7fffff))));
    if (__builtin_expect(infinite != 0, 0)) {
        for (int t = 0; t < T; ++t) {
            for (int v = 0; v < kBlockVectors; ++v) {
                numbers[t][v] = (infinite >> t & 1) != 0 ? Vector::ints(0) : numbers[t][v];
            }
        }
        const __m256 nan = _mm256_castsi256_ps(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7f800000)));
        scales = _mm256_blendv_ps(scales, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan);
    }

    Int sums[2][2];  // first and second halves, tokens 0 to 3 and others
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
        Int low, high;
        narrow<T>(numbers, v, low, high);
        Vector::write<T>(out + v * (Vector::lanes / 4) * 4 * T, low, high);
        Int(&half)[2] = sums[v * 2 / kBlockVectors];
        const bool first = v * 2 % kBlockVectors == 0;
        half[0] = first ? Vector::sums_of_four(low) : Vector::plus(half[0], Vector::sums_of_four(low));
        if constexpr (T > 4) {
            half[1] = first ? Vector::sums_of_four(high) : Vector::plus(half[1], Vector::sums_of_four(high));
        } else {
            half[1] = half[0];
        }
    }
    const auto lanes_of = [](const Int (&half)[2]) {
        return joined(Vector::add_lanes(half[0]), T > 4 ? Vector::add_lanes(half[1]) : _mm_setzero_si128());
    };
    const __m256i first = lanes_of(sums[0]);
    const __m256i second = lanes_of(sums[1]);
    const __m256i all = _mm256_add_epi32(first, second);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i rest[] = {_mm256_castps_si256(scales), _mm256_castps_si256(_mm256_mul_ps(scales, _mm256_cvtepi32_ps(all))),
                            _mm256_sub_epi32(zero, _mm256_slli_epi32(all, 3)), _mm256_sub_epi32(zero, _mm256_slli_epi32(all, 7)),
                            _mm256_sub_epi32(zero, _mm256_slli_epi32(first, 5)), _mm256_sub_epi32(zero, _mm256_slli_epi32(second, 5))};
#pragma GCC unroll 8
    for (int i = 0; i < 6; ++i) {
        write_lanes<T>(out + kBlock * T + i * 4 * T, rest[i]);
    }
}

// The block's vectors from the `first` on, a few at once.
template <int kind, int first, int T>
TOKENLOOM_INLINE void fill(const ActivationSource& source, const float* const (&row)[T], const Scaling (&scaling)[T], int64_t column,
                           Float (&x)[T][kBlockVectors]) {
    constexpr int left = T * kBlockVectors - first;
    constexpr int count = left < Vector::together ? left : Vector::together;
    const float* rows[count];
    int64_t at[count];
    Scaling own[count];
    Float made[count];
    each<count>([&](int i) {
        const int t = (first + i) / kBlockVectors;
        rows[i] = row[t];
        own[i] = scaling[t];
        at[i] = column + (first + i) % kBlockVectors * Vector::lanes;
    });
    make<kind>(source, rows, at, own, [](const float* p) { return Vector::load(p); }, made);
    each<count>([&](int i) { x[(first + i) / kBlockVectors][(first + i) % kBlockVectors] = made[i]; });
    if constexpr (count < left) {
        fill<kind, first + count>(source, row, scaling, column, x);
    }
}

template <int kind, int T>
void write_rounded(const ActivationSource& source, const float* rows, int64_t first, int64_t last, uint8_t* tile) {
    const float* row[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        row[t] = rows + static_cast<size_t>(t) * source.stride;
    }
    Scaling scaling[T] = {};
    scalings<kind>(source, row, scaling);
    uint8_t* out = tile + static_cast<size_t>(first / kBlock) * kRoundedBytes * T;
    for (int64_t at = first; at < last; at += kBlock, out += kRoundedBytes * T) {
        Float x[T][kBlockVectors];
        fill<kind, 0>(source, row, scaling, at, x);
        write_block<T>(x, out);
    }
}

// The other forms, in no blocks.
template <int kind>
void write_numbers(const ActivationSource& source, ActivationForm form, const float* rows, int tokens, int64_t first, int64_t last,
                   float* tile) {
    Scaling scaling[kTileTokens][1] = {};
    for (int t = 0; t < tokens; ++t) {
        const float* const row[1] = {rows + static_cast<size_t>(t) * source.stride};
        scalings<kind>(source, row, scaling[t]);
    }
    for (int64_t at = first; at < last; at += Vector::lanes) {
        const int count = last - at < Vector::lanes ? static_cast<int>(last - at) : Vector::lanes;
        float made[kTileTokens][Vector::lanes];
        for (int t = 0; t < tokens; ++t) {
            const float* const row[1] = {rows + static_cast<size_t>(t) * source.stride};
            Float x[1];
            make<kind>(source, row, {at}, scaling[t], [&](const float* p) { return Vector::load(p, count); }, x);
            Vector::store(made[t], form == ActivationForm::shortened ? to_11_bits(x[0]) : x[0]);
        }
        float* out = tile + static_cast<size_t>(at) * tokens;
        for (int i = 0; i < count; ++i) {
            for (int t = 0; t < tokens; ++t) {
                *out++ = made[t][i];
            }
        }
    }
}

template <int kind>
void write_kind(const ActivationSource& source, ActivationForm form, const float* rows, int tokens, int64_t first, int64_t last,
                uint8_t* tile) {
    if (form != ActivationForm::rounded) {
        write_numbers<kind>(source, form, rows, tokens, first, last, reinterpret_cast<float*>(tile));
        return;
    }
    static_assert(kTileTokens == 6);
    switch (tokens) {
        case 1: return write_rounded<kind, 1>(source, rows, first, last, tile);
        case 2: return write_rounded<kind, 2>(source, rows, first, last, tile);
        case 3: return write_rounded<kind, 3>(source, rows, first, last, tile);
        case 4: return write_rounded<kind, 4>(source, rows, first, last, tile);
        case 5: return write_rounded<kind, 5>(source, rows, first, last, tile);
        default: return write_rounded<kind, 6>(source, rows, first, last, tile);
    }
}

// What is rarer than multiplying rows as they are, RMS norms and SwiGLU: made block by block, and then written as it is. One function
// for each kind, not one for each number of tokens, which would take a compiler minutes.
template <int kind>
void write_other(const ActivationSource& source, ActivationForm form, const float* rows, int tokens, int64_t first, int64_t last,
                 uint8_t* tile) {
    if (form != ActivationForm::rounded) {
        write_numbers<kind>(source, form, rows, tokens, first, last, reinterpret_cast<float*>(tile));
        return;
    }
    constexpr int count = kBlockVectors < Vector::together ? kBlockVectors : Vector::together;
    Scaling scaling[kTileTokens][1] = {};
    for (int t = 0; t < tokens; ++t) {
        const float* const row[1] = {rows + static_cast<size_t>(t) * source.stride};
        scalings<kind>(source, row, scaling[t]);
    }
    for (int64_t column = first; column < last; column += kBlock) {
        float made[kTileTokens][kBlock];
        for (int t = 0; t < tokens; ++t) {
            for (int vector = 0; vector < kBlockVectors; vector += count) {
                const float* row[count];
                int64_t at[count];
                Scaling own[count];
                Float x[count];
                each<count>([&](int i) {
                    row[i] = rows + static_cast<size_t>(t) * source.stride;
                    at[i] = column + (vector + i) * Vector::lanes;
                    own[i] = scaling[t][0];
                });
                make<kind>(source, row, at, own, [](const float* p) { return Vector::load(p); }, x);
                each<count>([&](int i) { Vector::store(made[t] + (vector + i) * Vector::lanes, x[i]); });
            }
        }
        const ActivationSource plain{ActivationSource::plain, made[0], kBlock, kBlock};
        write_kind<ActivationSource::plain>(plain, form, made[0], tokens, 0, kBlock,
                                            tile + static_cast<size_t>(column / kBlock) * kRoundedBytes * tokens);
    }
}

void write_tile(const ActivationSource& source, ActivationForm form, int first_row, int tokens, int64_t first, int64_t last, uint8_t* tile) {
    const float* rows = source.data + static_cast<size_t>(first_row) * source.stride;
    switch (source.kind) {
#define TOKENLOOM_KIND(write, kind) \
    case ActivationSource::kind: return write<ActivationSource::kind>(source, form, rows, tokens, first, last, tile)
        TOKENLOOM_KIND(write_kind, plain);
        TOKENLOOM_KIND(write_kind, normed);
        TOKENLOOM_KIND(write_kind, gated);
        TOKENLOOM_KIND(write_other, layer_normed);
        TOKENLOOM_KIND(write_other, gelu_gated);
        TOKENLOOM_KIND(write_other, erf_gated);
        TOKENLOOM_KIND(write_other, clamped_gated);
        TOKENLOOM_KIND(write_other, silu);
        TOKENLOOM_KIND(write_other, gelu);
        TOKENLOOM_KIND(write_other, erf_gelu);
        TOKENLOOM_KIND(write_other, relu_squared);
        TOKENLOOM_KIND(write_other, xielu);
#undef TOKENLOOM_KIND
    }
}

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom
