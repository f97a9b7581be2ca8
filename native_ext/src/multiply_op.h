// Packed multiplication within the ggml graph: one node rounds the activations into tiles, later ones multiply.
//
// ggml calls a custom op on every thread and puts a barrier behind each node, but none within. So rounding is a node of
// its own, which several multiplications of the same activations share; and a multiplication is cut into items (a few
// groups of rows by a few tiles) that the threads take from an atomic counter, which prepare() sets back before the graph
// runs. Every output is computed by one kernel call in one item: how the work falls to the threads changes no bit.
//
// A node belongs to the graph it was made for, until clear(). One forward at a time.

#pragma once

#include <ggml.h>

#include <atomic>
#include <deque>
#include <vector>

#include "kernels.h"
#include "packed_matrix.h"

namespace tokenloom {

class MultiplyOps {
public:
    // `kernels` may be null when no weight is packed.
    MultiplyOps(const Kernels* kernels, int threads) : kernels_(kernels), threads_(threads) {}

    // Forgets the nodes of the graph before.
    void clear() { nodes_.clear(); }
    // Before every run of the graph.
    void prepare();

    // x: float32 [columns, rows], contiguous. The result is good for multiply() only.
    ggml_tensor* quantize(ggml_context* context, ggml_tensor* x);

    // float32 [sum of the parts' rows, rows]: the products of the parts, one below the other, with the activations that
    // quantize() gave for `rows` rows. The parts have the same number of columns.
    ggml_tensor* multiply(ggml_context* context, std::vector<const PackedMatrix*> parts, ggml_tensor* quantized, int rows);

private:
    struct Node {
        const Kernels* kernels;
        std::vector<const PackedMatrix*> parts;
        int chunk_groups;  // of an item
        std::atomic<int> next{0};
    };

    static void quantize_op(ggml_tensor* out, int thread, int threads, void*);
    static void multiply_op(ggml_tensor* out, int, int, void* node);

    const Kernels* kernels_;
    int threads_;
    std::deque<Node> nodes_;  // a deque: ggml keeps their addresses
};

}  // namespace tokenloom
