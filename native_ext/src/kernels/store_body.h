// Storing keys and values in cells (row_kernels.h), over `Vector` as in activations_body.h, and besides
//
//     less(a, b)                                          a < b ? a : b
//     write_halves(p, v), write_halves(p, v, n)           as float16, to nearest, ties to even; of the latter only n
//     write_bytes(p, i)                                   the lowest byte of each lane

namespace tokenloom {

namespace {

#define TOKENLOOM_INLINE inline __attribute__((always_inline))

// A NaN stays: the second operand of both is returned then.
TOKENLOOM_INLINE Vector::Float clamped(Vector::Float x, float most) {
    return Vector::less(Vector::all(most), Vector::greater(Vector::all(-most), x));
}

void write_halves(const float* from, int count, uint16_t* to) {
    int i = 0;
    for (; i + Vector::lanes <= count; i += Vector::lanes) {
        Vector::write_halves(to + i, clamped(Vector::load(from + i), kLargestHalf));
    }
    if (i < count) {
        Vector::write_halves(to + i, clamped(Vector::load(from + i, count - i), kLargestHalf), count - i);
    }
}

// Numbers i to i + 7 of eight positions.
TOKENLOOM_INLINE void spread_eight(const uint16_t* from, uint16_t* to, size_t stride) {
    __m128i rows[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kHalvesWidth));
    }
    __m128i pairs[8];  // of positions 2 * i and 2 * i + 1: numbers 0 to 3, and 4 to 7
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        pairs[i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
        pairs[4 + i] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        const __m128i* p = pairs + 4 * half;
        const __m128i low[2] = {_mm_unpacklo_epi32(p[0], p[1]), _mm_unpacklo_epi32(p[2], p[3])};
        const __m128i high[2] = {_mm_unpackhi_epi32(p[0], p[1]), _mm_unpackhi_epi32(p[2], p[3])};
        const __m128i columns[4] = {_mm_unpacklo_epi64(low[0], low[1]), _mm_unpackhi_epi64(low[0], low[1]),
                                    _mm_unpacklo_epi64(high[0], high[1]), _mm_unpackhi_epi64(high[0], high[1])};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + static_cast<size_t>(4 * half + i) * stride), columns[i]);
        }
    }
}

void spread_halves(const uint16_t* from, int positions, int count, uint16_t* to, size_t stride) {
    int i = 0;
    for (; positions == kPositionsTogether && i + 8 <= count; i += 8) {
        spread_eight(from + i, to + static_cast<size_t>(i) * stride, stride);
    }
    for (; i < count; ++i) {
        for (int position = 0; position < positions; ++position) {
            to[static_cast<size_t>(i) * stride + position] = from[position * kHalvesWidth + i];
        }
    }
}

uint16_t write_bytes(const float* from, int count, int8_t* to, size_t stride) {
    const auto load = [&](int i) {
        const int rest = count - i;
        return rest >= Vector::lanes ? Vector::load(from + i) : Vector::load(from + i, rest);
    };
    Vector::Int most = Vector::ints(0);  // magnitudes compare as integers, and a NaN is above all of them
    for (int i = 0; i < count; i += Vector::lanes) {
        most = Vector::largest(most, Vector::both(Vector::bits(load(i)), Vector::ints(INT32_MAX)));
    }
    const __m128i four = Vector::largest_lanes(most);
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1));
    if (_mm_cvtsi128_si32(one) > 0x7f800000) {
        for (int i = 0; i < count; ++i) {
            to[static_cast<size_t>(i) * stride] = 0;
        }
        return kHalfNan;
    }
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(one));
    const uint16_t scale = _cvtss_sh((largest < kLargestHalf ? largest : kLargestHalf) / kLargestByte, 0);
    const float step = _cvtsh_ss(scale);
    const Vector::Float inverse = Vector::all(step > 0.0f ? 1.0f / step : 0.0f);
    for (int i = 0; i < count; i += Vector::lanes) {
        int8_t bytes[Vector::lanes];
        Vector::write_bytes(bytes, Vector::rounded(clamped(Vector::mul(clamped(load(i), kLargestHalf), inverse), kLargestByte)));
        const int n = count - i < Vector::lanes ? count - i : Vector::lanes;
        if (stride == 1 && n == Vector::lanes) {
            __builtin_memcpy(to + i, bytes, sizeof(bytes));
            continue;
        }
        for (int lane = 0; lane < n; ++lane) {
            to[static_cast<size_t>(i + lane) * stride] = bytes[lane];
        }
    }
    return scale;
}

#undef TOKENLOOM_INLINE

}  // namespace

}  // namespace tokenloom
