// Packed multiplication within the ggml graph: one node rounds the activations into tiles, later ones multiply.
//
// ggml orders nodes, not what happens within one. So rounding is a node of its own, which several multiplications of the
// same activations share. Within a node the work is cut into items (for a multiplication a few groups of rows by some
// tiles, tile after tile as the other nodes count theirs), which the team of threads shares out. Every output is computed by one kernel call in one item: how the work
// falls to the threads changes no bit.
//
// A graph may have room for more rows than there are: nodes work on as many as a number says that the graph's owner keeps.
// A node belongs to the graph it was made for, until clear(). One forward at a time.

#pragma once

#include <ggml.h>

#include <deque>
#include <vector>

#include "kernels/activations.h"
#include "kernels/arranged_tiles.h"
#include "kernels/kernels.h"
#include "packing/packed_matrix.h"
#include "system/thread_team.h"

namespace tokenloom {

class MultiplyOps {
public:
    // `kernels` may be null when no weight is packed.
    MultiplyOps(const Kernels* kernels, ThreadTeam& team)
        : kernels_(kernels), rounding_(row_kernels_of(kernels)), team_(team), arranged_(static_cast<size_t>(team.threads())) {}

    // Forgets the nodes of the graph before.
    void clear() {
        nodes_.clear();
        quantizations_.clear();
    }

    // Nodes made from now on are of `*rows` rows when the graph runs, at most those of their tensors.
    void count_rows(const int* rows) { rows_ = rows; }

    // Activations for multiply(), which alone may read the results, in the form of the matrices they are for
    // (ActivationSource has the formulas). x: float32 [columns, rows], of quantize_gated() [2 * columns, rows]; weight:
    // float32 [columns].
    ggml_tensor* quantize(ggml_context* context, ggml_tensor* x, ActivationForm form);
    ggml_tensor* quantize_normed(ggml_context* context, ggml_tensor* x, ActivationForm form, ggml_tensor* weight, float epsilon);
    ggml_tensor* quantize_gated(ggml_context* context, ggml_tensor* x, ActivationForm form);

    // float32 [sum of the parts' rows, rows]: the products of the parts, one below the other, with activations of at most `rows`
    // rows in the parts' form. The parts have the same form and number of columns. `added`: a tensor of the result's shape to add, or
    // null.
    ggml_tensor* multiply(ggml_context* context, std::vector<const PackedMatrix*> parts, ggml_tensor* quantized, int rows,
                          ggml_tensor* added = nullptr);

private:
    struct Node {
        ThreadTeam* team;
        const Kernels* kernels;
        std::vector<ArrangedTiles>* arranged;
        const int* rows;
        std::vector<const PackedMatrix*> parts;
    };

    struct Quantization {
        ThreadTeam* team;
        const RowKernels* kernels;
        const int* rows;
        ActivationSource::Kind kind;
        ActivationForm form;
        float epsilon;
    };

    ggml_tensor* quantize(ggml_context* context, ggml_tensor* x, int64_t columns, ggml_tensor* weight, Quantization how);
    static void quantize_op(ggml_tensor* out, int thread, int threads, void* quantization);
    static void multiply_op(ggml_tensor* out, int thread, int threads, void* node);
    // How a multiplication is cut into items: by chunks of tiles, within each by chunks of groups.
    struct Cut {
        int tile_chunks;
        int chunk_groups;
        int group_chunks;  // of all parts
    };
    static Cut cut(const Node& node);
    static void multiply_items(const Node& node, const Cut& cut, ggml_tensor* out, int first, int last, int thread);

    const Kernels* kernels_;
    const RowKernels& rounding_;
    ThreadTeam& team_;
    std::vector<ArrangedTiles> arranged_;  // by thread
    const int* rows_ = nullptr;
    std::deque<Node> nodes_;  // a deque: ggml keeps their addresses
    std::deque<Quantization> quantizations_;
};

}  // namespace tokenloom
