// One token out of one row of logits.
//
// The contract, in prose:
//
// - sample() is a pure function of its arguments: same bits in, same token out, on every machine. Weights
//   are 2^((logit - best) * (log2(e) / temperature)) in float32 with an exponential of our own (power_of_two.h), each
//   operation rounded (build with -ffp-contract=off), and sums are in float64 in a fixed order.
// - In this order, as engine.py's Sampling says: logit bias, repetition penalty, presence and frequency penalties; then,
//   at temperature 0, the highest logit, lowest id among equals; otherwise temperature, top-k, top-p, min-p, one draw.
//   Each filter sees the distribution the one before it left, renormalized; among equals the lower id is the likelier.
// - The draw: u = philox_uniform(seed, position); the kept tokens are laid out in ascending id, each as wide as its
//   weight, and the token that covers u times their sum is taken. A token less likely than 2^-100 times the best one is
//   never drawn.
// - -inf is a logit that excludes its token. NaN, +inf, and a row of nothing but -inf are EngineError: the model, not the
//   caller, is at fault. Sums that leave the range of float32 stay at its largest finite value.
// - logprobs are natural logs of the softmax of the row as given, before bias and everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "system/errors.h"
#include "kernels/row_kernels.h"

namespace tokenloom {

// Field for field engine.py's Sampling. `logprobs` is -1 for none.
struct Sampling {
    double temperature = 1.0;
    std::int64_t top_k = 0;
    double top_p = 1.0;
    double min_p = 0.0;
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    std::int64_t penalty_window = 64;
    std::vector<std::pair<std::int64_t, double>> logit_bias;
    std::uint64_t seed = 0;
    std::int64_t logprobs = -1;
};

// Throws BatchError that names the field, its value and its limit. Call it for every entry before any work is done;
// sample() takes the settings as valid.
void validate(const Sampling& sampling, std::int64_t vocabulary);

struct Sampled {
    std::int32_t token = -1;
    bool with_logprobs = false;
    double logprob = 0.0;                             // of `token`
    std::vector<std::pair<std::int32_t, double>> top;  // best first, at most `logprobs` of them
};

// Holds scratch space that grows to the vocabulary: one Sampler per thread, used for row after row.
class Sampler {
   public:
    explicit Sampler(const RowKernels& kernels = kPortableRows) : kernels_(&kernels) {}

    // `logits`: one row, float32, one per token of the vocabulary. `tokens`: the sequence as it is, the token that made
    // this row last; the penalty window is cut from its end. `position`: where the sampled token will stand, normally
    // tokens.size(). Throws EngineError for the rows named above, and BatchError when logit_bias excludes every token or
    // `tokens` names one outside the vocabulary. The row is not changed.
    Sampled sample(std::span<const float> logits, std::span<const std::int32_t> tokens, std::uint64_t position,
                   const Sampling& sampling);

   private:
    struct Best {
        float logit;
        std::int32_t token;  // the lowest id among equals
    };

    Best scan(std::span<const float> row);
    Best best_of(std::span<const float> row) const;
    std::span<const float> adjust(std::span<const float> row, std::span<const std::int32_t> tokens,
                                  const Sampling& sampling);
    void penalize(std::span<const std::int32_t> tokens, const Sampling& sampling);
    double log_sum(std::span<const float> row, float best);
    void select(std::span<const float> row, std::size_t count);
    void weigh(std::span<const float> logits, float best, double temperature);
    void add_up(std::size_t block);
    double sum_from(float least) const;
    void keep(float least);
    void adopt();
    void keep_top_p(double top_p);
    std::size_t draw(double uniform) const;

    const RowKernels* kernels_;
    std::vector<float> adjusted_;         // the row after bias and penalties
    std::vector<std::int32_t> seen_;      // occurrences in the window, by token; all 0 between calls
    std::vector<std::int32_t> changed_;   // tokens that adjust() changed
    std::vector<float> maxima_;           // of each block of the row last scanned or adjusted
    std::vector<float> order_;            // scratch of select()
    std::vector<std::int32_t> selected_;  // candidates' ids, ascending, once a filter has left some out
    std::vector<float> chosen_;           // what select() kept: logits
    bool whole_ = true;                   // no filter has left any out: candidates are the row
    std::vector<float> weights_;          // by candidate: its probability relative to the best one's
    std::vector<double> sums_;            // of each block of the weights
    std::vector<float> tops_;             // the largest of each block of the weights
    double total_ = 0;                    // of the weights
    std::vector<std::int32_t> kept_;      // candidates that keep() kept, ascending
    std::size_t kept_count_ = 0;          // of these; the vector only grows
    std::vector<std::int32_t> between_;   // scratch of keep_top_p(): candidates
};

}  // namespace tokenloom
