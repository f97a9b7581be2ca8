// The body of every attention kernel (attention_kernel.h says what it computes), over `Vector`: a vector of float32 that
// the including file defines, in an unnamed namespace, with
//
//     lanes                                         8 or 16
//     together                                      queries in a block, and
//     across                                        vectors of each, so that their sums fit the registers
//     zero(), all(x), load(p), store(p)             p: float*, aligned or not; load() also from float16 (uint16_t*) and
//                                                   int8_t*, exact
//     a + b, a - b, a * b, a / b, fused(a, b, c)    a * b + c rounded once
//     a.size(), a.signed_as(b)                      |a|; |a| with the sign of b
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

// What is read next, fetched ahead a little at a time while something else is computed. Only what will be read: at short
// contexts whole pages would be several times as much.
struct Fetch {
    const char* at;
    size_t stride;
    int lines;  // of a turn
    int turns;  // left

    // `rows` of `row_bytes`, of which the first `used` are needed, within so many turns.
    static TOKENLOOM_INLINE Fetch of(const void* from, int rows, size_t row_bytes, size_t used, int turns) {
        if (from == nullptr) {
            return {nullptr, 64, 0, 0};
        }
        const size_t stride = row_bytes > 64 && used <= 64 ? row_bytes : 64;
        const int lines = static_cast<int>((static_cast<size_t>(rows) * row_bytes + stride - 1) / stride);
        const int each = (lines + turns - 1) / turns;
        return {static_cast<const char*>(from), stride, each, (lines + each - 1) / each};
    }
    TOKENLOOM_INLINE void turn() {
        if (turns > 0) {
            --turns;
            for (int i = 0; i < lines; ++i, at += stride) {
                Vector::ahead(at);
            }
        }
    }
};

// Scores of N queries for W vectors of positions.
template <int N, int W, typename T>
TOKENLOOM_INLINE void score_columns(const float* queries, int head_size, const T* keys, float* scores, Fetch& next) {
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
        if (sizeof(T) < sizeof(float)) {
            next.turn();
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
TOKENLOOM_INLINE void score(const float* queries, int head_size, const T* keys, int vectors, float* scores, Fetch next) {
    static_assert(Vector::across == 4);
    for (; vectors > 0; vectors -= 4, keys += 4 * Vector::lanes, scores += 4 * Vector::lanes) {
        switch (vectors) {  // at once, since one vector's sums wait for each other
            case 1: score_columns<N, 1>(queries, head_size, keys, scores, next); break;
            case 2: score_columns<N, 2>(queries, head_size, keys, scores, next); break;
            case 3: score_columns<N, 3>(queries, head_size, keys, scores, next); break;
            default: score_columns<N, 4>(queries, head_size, keys, scores, next); break;
        }
    }
}

// Adds `positions` weighted values to N outputs, W vectors of dimensions.
template <int N, int W, typename T>
TOKENLOOM_INLINE void mix_columns(const float* weights, int positions, const T* values, size_t stride, const float* factors, float* output,
                                  int padded, Fetch& next) {
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
        if (sizeof(T) < sizeof(float)) {
            next.turn();
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
                          int padded, Fetch next) {
    constexpr int across = Vector::across;
    int d = 0;
    for (; d + across * Vector::lanes <= padded; d += across * Vector::lanes) {
        mix_columns<N, across>(weights, positions, values + d, stride, factors, output + d, padded, next);
    }
    for (; d < padded; d += Vector::lanes) {
        mix_columns<N, 1>(weights, positions, values + d, stride, factors, output + d, padded, next);
    }
}

TOKENLOOM_INLINE Vector capped(Vector s, float cap) {
    const Vector one = Vector::all(1.0f);
    const Vector e = (s.size() * Vector::all(-2.88539008f / cap)).power_of_two();
    return ((one - e) / (one + e) * Vector::all(cap)).signed_as(s);
}

// The scores of N queries to weights, their maxima and sums updated; `factors` are what the outputs so far shrink by. Behind
// `vectors` nobody sees a position.
template <int N>
TOKENLOOM_INLINE void soften(const PageTask& task, int first, int vectors, float* scores, const float* key_scales,
                             const float* value_scales, float* factors) {
    const int* visible = task.visible + first;
    const int* hidden = task.hidden + first;
    float* maximum = task.maximum + first;
    float shrunk[kMostLanes] = {};
    for (int n = 0; n < N; ++n) {
        float* row = scores + n * kPageSize;
        Vector most = Vector::all(kNegative);
        const bool touched = key_scales != nullptr || task.cap != 0.0f || hidden[n] > 0 || visible[n] < vectors * Vector::lanes;
        for (int i = 0; i < vectors; ++i) {
            Vector s = Vector::load(row + i * Vector::lanes);
            if (touched) {
                if (key_scales != nullptr) {
                    s = s * Vector::load(key_scales + i * Vector::lanes);
                }
                if (task.cap != 0.0f) {
                    s = capped(s, task.cap);
                }
                s = Vector::all(kNegative).first(hidden[n] - i * Vector::lanes, s.first(visible[n] - i * Vector::lanes, Vector::all(kNegative)));
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
            weights[i] = Vector::zero();
        }
        for (int i = 0; i < vectors; ++i) {
            weights[i] = (Vector::load(row + i * Vector::lanes) - both).power_of_two();
            Vector w = weights[i];
            if (value_scales != nullptr) {  // a position unseen may have any scale
                w = (w * Vector::load(value_scales + i * Vector::lanes)).first(visible[n] - i * Vector::lanes, Vector::zero());
                w = Vector::zero().first(hidden[n] - i * Vector::lanes, w);
            }
            w.store(row + i * Vector::lanes);
        }
        task.sum[first + n] = __builtin_fmaf(task.sum[first + n], factors[n], Vector::tree(weights));
    }
}

// Of N queries from the `first`: the most positions that one sees.
template <int N>
TOKENLOOM_INLINE int seen_by(const PageTask& task, int first) {
    int last = 0;
    for (int n = 0; n < N; ++n) {
        last = task.visible[first + n] > last ? task.visible[first + n] : last;
    }
    return last;
}

TOKENLOOM_INLINE int vectors_of(int positions) { return (positions + Vector::lanes - 1) / Vector::lanes; }

// A page that was widened is in the cache; one read as it lies is fetched ahead, the values while the keys are multiplied, and
// the next page's keys with the values.
template <int N, typename T>
void score_block(const PageTask& task, int first, const T* keys, float* scores) {
    const int last = seen_by<N>(task, first);
    const size_t row_bytes = task.value_size * sizeof(T);
    const Fetch values = Fetch::of(sizeof(T) < sizeof(float) ? task.page.values : nullptr, last, row_bytes, row_bytes, task.key_size);
    score<N>(task.query + static_cast<size_t>(first) * task.key_size, task.key_size, keys, vectors_of(last), scores, values);
}

template <int N, typename T>
void mix_block(const PageTask& task, int first, const T* values, size_t value_stride, float* scores, const float* key_scales,
               const float* value_scales) {
    const int last = seen_by<N>(task, first);
    const Fetch next = Fetch::of(sizeof(T) < sizeof(float) ? task.next : nullptr, task.key_size, kPageSize * sizeof(T),
                                 static_cast<size_t>(task.next_positions) * sizeof(T), last);
    float factors[kMostLanes];
    soften<N>(task, first, vectors_of(last), scores, key_scales, value_scales, factors);
    mix<N>(scores, last, values, value_stride, factors, task.output + static_cast<size_t>(first) * task.padded, task.padded, next);
}

// Calls with a number of queries, from 1 to Vector::together, as a constant.
template <typename Call>
TOKENLOOM_INLINE void with_constant(int n, const Call& call) {
    constexpr int most = Vector::together;
    switch (n) {
        case 1: call.template operator()<1>(); break;
        case 2: call.template operator()<2>(); break;
        case 3: call.template operator()<3>(); break;
        case 4: call.template operator()<(most < 4 ? most : 4)>(); break;
        case 5: call.template operator()<(most < 5 ? most : 5)>(); break;
        default: call.template operator()<most>(); break;
    }
}

// In blocks of about the same size. A block is scored before the one before it is softened, which waits for its own results
// again and again.
template <typename T>
void attend_blocks(const PageTask& task, const T* keys, const T* values, size_t value_stride, const float* key_scales,
                   const float* value_scales) {
    const int blocks = (task.queries + Vector::together - 1) / Vector::together;
    const auto begin = [&](int block) { return static_cast<int>(static_cast<int64_t>(task.queries) * block / blocks); };
    const auto scores = [&](int block) { return task.scores + block % 2 * kMostTogether * kPageSize; };
    for (int block = 0; block <= blocks; ++block) {
        if (block < blocks) {
            with_constant(begin(block + 1) - begin(block), [&]<int N>() { score_block<N>(task, begin(block), keys, scores(block)); });
        }
        if (block > 0) {
            with_constant(begin(block) - begin(block - 1), [&]<int N>() {
                mix_block<N>(task, begin(block - 1), values, value_stride, scores(block - 1), key_scales, value_scales);
            });
        }
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
    if (task.queries <= Vector::together && task.value_size == task.padded) {
        attend_blocks(task, keys, values, task.value_size, key_scales, value_scales);
        return;
    }
    widen(keys, task.key_size, kPageSize, task.wide_keys, kPageSize);
    widen(values, kPageSize, task.value_size, task.wide_values, task.padded);
    attend_blocks<float>(task, task.wide_keys, task.wide_values, task.padded, key_scales, value_scales);
}

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom
