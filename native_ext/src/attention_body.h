// The body of every attention kernel (attention_kernel.h says what it computes), over `Vector`: a vector of float32 that
// the including file defines, in an unnamed namespace, with
//
//     lanes                                         8 or 16
//     together                                      queries in a block, and
//     across                                        vectors of each, so that their sums fit the registers
//     zero(), all(x), load(p), store(p)             p: float*, aligned or not; load() also from float16 (uint16_t*) and
//                                                   int8_t*, exact
//     a + b, a - b, a * b, fused(a, b, c)           a * b + c rounded once
//     greater(a, b)                                 a > b ? a : b
//     a.first(n, other)                             lanes 0 to n - 1 of a, of `other` the rest; n may be any integer
//     a.power_of_two()                              2^a for a <= 0 (power_of_two() below, with its masks)
//     a.largest(), Vector::tree(w)                  of the lanes; of kPageSize / lanes vectors
//     ahead(p)                                      fetch the cache line at p

namespace tokenloom {

namespace {

constexpr int kPageVectors = kPageSize / Vector::lanes;
constexpr float kNegative = -__builtin_inff();

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

// Scores of N queries for W vectors of positions.
template <int N, int W, typename T>
TOKENLOOM_INLINE void score_columns(const float* queries, int head_size, const T* keys, float* scores, const char* next) {
    Vector sums[N][W];
    for (int n = 0; n < N; ++n) {
        for (int i = 0; i < W; ++i) {
            sums[n][i] = Vector::zero();
        }
    }
    for (int d = 0; d < head_size; ++d, keys += kPageSize) {
        Vector key[W];
        for (int i = 0; i < W; ++i) {
            key[i] = Vector::load(keys + i * Vector::lanes);
        }
        if (next != nullptr) {
            for (size_t line = 0; line < kPageSize * sizeof(T); line += 64) {
                Vector::ahead(next + static_cast<size_t>(d) * kPageSize * sizeof(T) + line);
            }
        }
        for (int n = 0; n < N; ++n) {
            const Vector q = Vector::all(queries[n * head_size + d]);
            for (int i = 0; i < W; ++i) {
                sums[n][i] = fused(q, key[i], sums[n][i]);
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        for (int i = 0; i < W; ++i) {
            sums[n][i].store(scores + n * kPageSize + i * Vector::lanes);
        }
    }
}

template <int N, typename T>
TOKENLOOM_INLINE void score(const float* queries, int head_size, const T* keys, int vectors, float* scores, const char* next) {
    constexpr int across = Vector::across;
    int i = 0;
    for (; i + across <= vectors; i += across) {
        score_columns<N, across>(queries, head_size, keys + i * Vector::lanes, scores + i * Vector::lanes, i == 0 ? next : nullptr);
    }
    for (; i < vectors; ++i) {
        score_columns<N, 1>(queries, head_size, keys + i * Vector::lanes, scores + i * Vector::lanes, nullptr);
    }
}

// Adds `positions` weighted values to N outputs, W vectors of dimensions.
template <int N, int W, typename T>
TOKENLOOM_INLINE void mix_columns(const float* weights, int positions, const T* values, size_t stride, const float* factors, float* output,
                                  int padded, const char* next) {
    Vector sums[N][W];
    for (int n = 0; n < N; ++n) {
        const Vector factor = Vector::all(factors[n]);
        for (int i = 0; i < W; ++i) {
            sums[n][i] = Vector::load(output + static_cast<size_t>(n) * padded + i * Vector::lanes) * factor;
        }
    }
    for (int j = 0; j < positions; ++j, values += stride) {
        Vector value[W];
        for (int i = 0; i < W; ++i) {
            value[i] = Vector::load(values + i * Vector::lanes);
        }
        if (next != nullptr) {
            for (size_t line = 0; line < W * Vector::lanes * sizeof(T); line += 64) {
                Vector::ahead(next + static_cast<size_t>(j) * stride * sizeof(T) + line);
            }
        }
        for (int n = 0; n < N; ++n) {
            const Vector w = Vector::all(weights[n * kPageSize + j]);
            for (int i = 0; i < W; ++i) {
                sums[n][i] = fused(w, value[i], sums[n][i]);
            }
        }
    }
    for (int n = 0; n < N; ++n) {
        for (int i = 0; i < W; ++i) {
            sums[n][i].store(output + static_cast<size_t>(n) * padded + i * Vector::lanes);
        }
    }
}

template <int N, typename T>
TOKENLOOM_INLINE void mix(const float* weights, int positions, const T* values, size_t stride, const float* factors, float* output,
                          int padded, const char* next) {
    constexpr int across = Vector::across;
    const auto next_at = [&](int d) { return next == nullptr ? next : next + d * sizeof(T); };
    int d = 0;
    for (; d + across * Vector::lanes <= padded; d += across * Vector::lanes) {
        mix_columns<N, across>(weights, positions, values + d, stride, factors, output + d, padded, next_at(d));
    }
    for (; d < padded; d += Vector::lanes) {
        mix_columns<N, 1>(weights, positions, values + d, stride, factors, output + d, padded, next_at(d));
    }
}

// The scores of N queries to weights, their maxima and sums updated; `factors` are what the outputs so far shrink by.
template <int N>
TOKENLOOM_INLINE void soften(const PageTask& task, int first, const float* key_scales, const float* value_scales, float* factors) {
    float* scores = task.scores;
    const int* visible = task.visible + first;
    float* maximum = task.maximum + first;
    float shrunk[kMostLanes] = {};
    for (int n = 0; n < N; ++n) {
        float* row = scores + n * kPageSize;
        Vector most = Vector::all(kNegative);
        const bool touched = key_scales != nullptr || visible[n] < kPageSize;
        for (int i = 0; i < kPageVectors; ++i) {
            Vector s = Vector::load(row + i * Vector::lanes);
            if (touched) {
                if (key_scales != nullptr) {
                    s = s * Vector::load(key_scales + i * Vector::lanes);
                }
                s = s.first(visible[n] - i * Vector::lanes, Vector::all(kNegative));
                s.store(row + i * Vector::lanes);
            }
            most = greater(s, most);
        }
        const float before = maximum[n];
        const float here = most.largest();
        const float both = here > before ? here : before;
        maximum[n] = both;
        shrunk[n] = before - both;
    }
    for (int i = 0; i < N; i += Vector::lanes) {
        Vector::load(shrunk + i).power_of_two().store(factors + i);
    }
    for (int n = 0; n < N; ++n) {
        float* row = scores + n * kPageSize;
        const Vector both = Vector::all(maximum[n]);
        Vector weights[kPageVectors];
        for (int i = 0; i < kPageVectors; ++i) {
            weights[i] = (Vector::load(row + i * Vector::lanes) - both).power_of_two();
            Vector w = weights[i];
            if (value_scales != nullptr) {  // a position unseen may have any scale
                w = (w * Vector::load(value_scales + i * Vector::lanes)).first(visible[n] - i * Vector::lanes, Vector::zero());
            }
            w.store(row + i * Vector::lanes);
        }
        task.sum[first + n] = __builtin_fmaf(task.sum[first + n], factors[n], Vector::tree(weights));
    }
}

template <int N, typename T>
void attend_block(const PageTask& task, int first, const T* keys, const T* values, size_t value_stride, const float* key_scales,
                  const float* value_scales) {
    int last = 0;
    for (int n = 0; n < N; ++n) {
        last = task.visible[first + n] > last ? task.visible[first + n] : last;
    }
    // A page that was widened is in the cache; one read as it lies is fetched ahead, the values behind the keys.
    const bool fetch = sizeof(T) < sizeof(float);
    const char* next_values = fetch ? static_cast<const char*>(task.page.values) : nullptr;
    const char* next = fetch ? static_cast<const char*>(task.next) : nullptr;
    score<N>(task.query + static_cast<size_t>(first) * task.head_size, task.head_size, keys, (last + Vector::lanes - 1) / Vector::lanes,
             task.scores, next_values);
    float factors[kMostLanes];
    soften<N>(task, first, key_scales, value_scales, factors);
    mix<N>(task.scores, last, values, value_stride, factors, task.output + static_cast<size_t>(first) * task.padded, task.padded, next);
}

template <typename T>
void attend_blocks(const PageTask& task, const T* keys, const T* values, size_t value_stride, const float* key_scales,
                   const float* value_scales) {
    int blocks = (task.queries + Vector::together - 1) / Vector::together;
    for (int first = 0; first < task.queries; --blocks) {
        const int n = (task.queries - first + blocks - 1) / blocks;  // evenly
        const auto block = [&](auto attend) { attend(task, first, keys, values, value_stride, key_scales, value_scales); };
        switch (n) {
            case 1: block(attend_block<1, T>); break;
            case 2: block(attend_block<2, T>); break;
            case 3: block(attend_block<3, T>); break;
            case 4: block(attend_block<(Vector::together < 4 ? 3 : 4), T>); break;
            case 5: block(attend_block<(Vector::together < 4 ? 3 : 5), T>); break;
            default: block(attend_block<Vector::together, T>); break;
        }
        first += n;
    }
}

// `rows` rows of `columns` numbers, widened to rows of `padded`, 0 in between.
template <typename T>
void widen(const T* from, int rows, int columns, float* to, int padded) {
    const int whole = columns / Vector::lanes * Vector::lanes;
    for (int row = 0; row < rows; ++row, from += columns, to += padded) {
        for (int i = 0; i < whole; i += Vector::lanes) {
            Vector::load(from + i).store(to + i);
        }
        if (whole < padded) {
            T rest[kMostLanes] = {};
            for (int i = whole; i < columns; ++i) {
                rest[i - whole] = from[i];
            }
            for (int i = whole; i < padded; i += Vector::lanes) {
                Vector::load(rest + i - whole).store(to + i);
            }
        }
    }
}

template <typename T>
void attend_page(const PageTask& task) {
    const auto* keys = static_cast<const T*>(task.page.keys);
    const auto* values = static_cast<const T*>(task.page.values);
    float scales[2][kPageSize];
    const bool scaled = task.page.key_scales != nullptr;
    if (scaled) {
        widen(task.page.key_scales, 1, kPageSize, scales[0], kPageSize);
        widen(task.page.value_scales, 1, kPageSize, scales[1], kPageSize);
    }
    const float* key_scales = scaled ? scales[0] : nullptr;
    const float* value_scales = scaled ? scales[1] : nullptr;
    // Few queries read a page as it is stored; many share one widened copy. Widening is exact: the same bits.
    if (task.queries <= Vector::together && task.head_size == task.padded) {
        attend_blocks(task, keys, values, task.head_size, key_scales, value_scales);
        return;
    }
    widen(keys, task.head_size, kPageSize, task.wide_keys, kPageSize);
    widen(values, kPageSize, task.head_size, task.wide_values, task.padded);
    attend_blocks<float>(task, task.wide_keys, task.wide_values, task.padded, key_scales, value_scales);
}

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom
