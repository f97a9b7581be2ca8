// What becomes of a product before it is stored: out = cap(factor * y + added) of y = scale * product + bias, or where llama.cpp has
// it so, scale * (product + bias).

#pragma once

#include <cstddef>

namespace tokenloom {

// cap(x) = cap * tanh(x / cap), nothing if cap is 0. `scale`, `bias` (float32, one for each row of the matrix) and `added` (a row
// for each token, as the products lie) may be null.
struct Epilogue {
    const float* scale = nullptr;
    const float* bias = nullptr;
    float factor = 1.0f;
    float cap = 0.0f;
    const float* added = nullptr;
    bool bias_first = false;  // before the scale

    bool nothing() const { return scale == nullptr && bias == nullptr && factor == 1.0f && cap == 0.0f && added == nullptr; }
};

// Of `count` products of each of `tokens` tokens at `out`, `stride` floats from one token to the next; bias and added begin where
// they do.
void finish(const Epilogue& how, float* out, size_t stride, int tokens, int count);

}  // namespace tokenloom
