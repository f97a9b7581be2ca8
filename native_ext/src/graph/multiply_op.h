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

    // Activations to be: what ActivationSource has the formulas of. x: float32 [columns, rows], of gated kinds [2 * columns, rows].
    struct Made {
        ggml_tensor* x;
        ActivationSource::Kind kind = ActivationSource::plain;
        const float* weight = nullptr;
        float epsilon = 0.0f;
        const float* bias = nullptr;
        int64_t columns() const { return is_gated(kind) ? x->ne[0] / 2 : x->ne[0]; }
    };
    // For multiply(), which alone may read the results, in the form of the matrices they are for.
    ggml_tensor* quantize(ggml_context* context, const Made& made, ActivationForm form);
    // The same numbers as float32 [columns, rows].
    ggml_tensor* dense(ggml_context* context, const Made& made);

    // A matrix, and what is done to its products (epilogue.h). bias: float32 [matrix's rows] or null; scale: one float32 or null.
    struct Part {
        const PackedMatrix* matrix;
        const float* bias;
        const float* scale;
        bool bias_first = false;
    };
    // What is done to all of them. added: a tensor of the result's shape to add, or null.
    struct Ending {
        ggml_tensor* added = nullptr;
        float factor = 1.0f;
        float cap = 0.0f;
    };
    // float32 [sum of the parts' rows, rows]: the products of the parts, one below the other, with activations of at most `rows`
    // rows in the parts' form. The parts have the same form and number of columns.
    ggml_tensor* multiply(ggml_context* context, std::vector<Part> parts, ggml_tensor* quantized, int rows, const Ending& ending);

private:
    struct Node {
        ThreadTeam* team;
        const Kernels* kernels;
        std::vector<ArrangedTiles>* arranged;
        const int* rows;
        std::vector<Part> parts;
        float factor;
        float cap;
    };

    struct Quantization {
        ThreadTeam* team;
        const RowKernels* kernels;
        const int* rows;
        Made made;
        ActivationForm form;
    };

    ggml_tensor* make(ggml_context* context, const Made& made, ActivationForm form, ggml_type type, int64_t first, int64_t second,
                      ggml_custom_op_t op);
    static ActivationSource source_of(const Quantization& how, const ggml_tensor* x);
    static void quantize_op(ggml_tensor* out, int thread, int threads, void* quantization);
    static void dense_op(ggml_tensor* out, int thread, int threads, void* quantization);
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
