// What candidates weigh in a draw, one function for each instruction set, all with the same bits.
//
//     weights[i] = 2^((logits[i] - best) * factor)                          as power_of_two.h has it, for logits <= best
//     sums[b], tops[b]: sum and largest of the weights of block b, which are kWeighed elements or, at the end, fewer
//
// A block's sum is one of float64 in eight lanes, lane l that of the elements l, l + 8, ... of the block in their order; then
// lanes 0 and 4, 1 and 5, ... and of these four the first two and the last two.
//
// Included where the instruction set differs: nothing of the standard library in here (kernel_table.h tells why).

#pragma once

#include <stdint.h>

namespace tokenloom {

constexpr int kWeighed = 64;

// `logits` and `weights`: float32 [count]; `sums`: float64, `tops`: float32, one of each for each block.
using Weigh = void (*)(const float* logits, int64_t count, float best, float factor, float* weights, double* sums, float* tops);

void weigh_portable(const float* logits, int64_t count, float best, float factor, float* weights, double* sums, float* tops);
#ifdef TOKENLOOM_X86_KERNELS
void weigh_avx512(const float* logits, int64_t count, float best, float factor, float* weights, double* sums, float* tops);
#endif

}  // namespace tokenloom
