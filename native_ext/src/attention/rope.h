// Rotary position embedding (Su et al. 2021) over pairs of neighbouring dimensions, as files of architecture llama have
// their heads permuted for it, or of a dimension and the one half of those turned further on, as GPT-NeoX has it, with the frequencies' divisors of Llama 3 and YaRN (Peng et al. 2023): what ggml_rope_ext
// computes in its normal and NeoX modes, but for rounding. ggml multiplies its way from one pair's angle to the next in float32 and
// calls the C library, whose results differ between machines; here an angle is a position times a frequency in float64,
// with sine and cosine of our own in one order of operations: the same bits on every instruction set.

#pragma once

#include <vector>

#include "attention/rope_params.h"

namespace tokenloom {

class Rope {
public:
    // Turns nothing.
    Rope() = default;
    // factors: float32 [dimensions / 2] that frequencies are divided by, or null.
    Rope(const RopeParams& params, const float* factors);

    // How many of a head's dimensions are turned; the rest stay as they are.
    int dimensions() const { return static_cast<int>(frequencies_.size()) * 2; }
    // Floats of one position's angles: for each dimension d what x[d] is multiplied by, and then what the other of its pair is; both
    // as if pairs were neighbours.
    int angle_floats() const { return 2 * dimensions(); }
    void angles(int position, float* out) const;

    // to[d] = (x[d] * own angle + x[the other of its pair] * other angle) * scale for one head, each operation rounded;
    // x[d] * scale for those not turned.
    // `to` may be x.
    static void turn(const float* x, int head_size, const float* angles, int dimensions, RopeOrder order, float scale, float* to);

private:
    std::vector<double> frequencies_;  // radians a position turns each pair by
    double magnitude_ = 1.0;           // of sine and cosine
};

}  // namespace tokenloom
