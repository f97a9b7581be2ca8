// The blocks of quantized GGUF types, read into one form: 32 small integers with a scale and, for some, a minimum
// or a second scale.
//
// Layouts as the GGUF specification and ggml's documentation of its types give them. A number is scale * q, or
// scale * q + minimum for the types that have one.

#pragma once

#include <ggml.h>

#include <cstdint>

namespace tokenloom {

struct WeightBlock {
    int8_t quants[32];
    ggml_fp16_t scale;
    ggml_fp16_t second;  // the minimum; for Q6_K the scale of numbers 16 to 31
};

// Types that can be read: Q4_0 (q from -8 to 7), Q8_0, Q5_0 (-16 to 15); with minimums Q4_1, Q4_K (0 to 15), Q5_1, Q5_K
// (0 to 31); with two scales Q6_K (-32 to 31).
// `row` is a row's first byte, `block` counts its blocks of 32.
void read_block(ggml_type type, const uint8_t* row, int64_t block, WeightBlock& out);

}  // namespace tokenloom
