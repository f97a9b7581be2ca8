// Mixtures of experts within the ggml graph. Rows of the whole batch that chose the same expert are multiplied together.
//
// The nodes of a layer, in order: route() chooses; gather() makes activations of the rows, an entry for each use of an expert
// (routing.h); multiply() and make() go on with entries; combine() gives rows back. A row's numbers do not depend on who else chose
// its experts: entries are rows, and every product is one kernel call's, as in multiply_op.h. What ggml alone can multiply is
// multiplied a row at a time by its dot product.
//
// The routing is shared by all layers, whose nodes run one after another. The rules of multiply_op.h hold here, too.

#pragma once

#include <ggml.h>

#include <deque>
#include <vector>

#include "graph/epilogue.h"
#include "graph/multiply_op.h"
#include "graph/routing.h"
#include "kernels/activations.h"
#include "models/model.h"
#include "system/thread_team.h"

namespace tokenloom {

class ExpertOps {
public:
    ExpertOps(const Experts& experts, const Kernels* kernels, ThreadTeam& team)
        : routing_(experts), kernels_(kernels), rows_kernels_(row_kernels_of(kernels)), team_(team),
          scratch_(static_cast<size_t>(team.threads())) {}

    void clear() { nodes_.clear(); }
    // Nodes made from now on are of `*rows` rows when the graph runs, at most `most`.
    void count_rows(const int* rows, int most);

    // How entries' activations must be to be multiplied with a stack of matrices.
    struct Form {
        bool ours;             // in tiles of `form`; otherwise as ggml's `type` has them
        ActivationForm form;
        ggml_type type;
        bool operator==(const Form&) const = default;
    };
    static Form form_of(const std::vector<Matrix>& stack);

    // logits: float32 [experts, rows]. The result is a tensor without use but to order what follows.
    ggml_tensor* route(ggml_context* context, ggml_tensor* logits, const float* choice_bias);
    // rows: float32 [columns, rows].
    ggml_tensor* gather(ggml_context* context, ggml_tensor* rows, ggml_tensor* routed, const Form& form);
    // Of entries; made.x: float32 [columns, entries], of gated kinds [2 * columns, entries].
    ggml_tensor* make(ggml_context* context, const MultiplyOps::Made& made, const Form& form);
    // float32 [sum of the stacks' rows, entries]; the stacks have the form and number of columns that the activations have.
    ggml_tensor* multiply(ggml_context* context, const std::vector<const std::vector<Matrix>*>& stacks, ggml_tensor* activations,
                          const Form& form);
    // float32 [columns, rows]: factor * (each row's entries by their weights, the most wanted first) + before, which may be null.
    ggml_tensor* combine(ggml_context* context, ggml_tensor* entries, float factor, ggml_tensor* before);

private:
    struct Node {
        ExpertOps* owner;
        const int* rows;
        const float* choice_bias = nullptr;
        MultiplyOps::Made made{};
        Form form{};
        int64_t columns = 0;
        std::vector<const std::vector<Matrix>*> stacks;
        float factor = 1.0f;
    };
    // A tile of an expert's entries.
    struct Tile {
        int expert;
        int tile;
    };

    ggml_tensor* node(ggml_context* context, Node&& node, ggml_type type, int64_t first, int64_t second, std::vector<ggml_tensor*> operands,
                      ggml_custom_op_t op, int tasks);
    ggml_tensor* activations(ggml_context* context, Node&& node, std::vector<ggml_tensor*> operands, ggml_custom_op_t op);
    static size_t activation_offset(const Form& form, int64_t columns, int entries);
    void write_entries(const Node& node, const ActivationSource& source, int expert, int tile, uint8_t* out, int worker);

    static void choose_op(ggml_tensor* out, int thread, int threads, void* node);
    static void arrange_op(ggml_tensor* out, int thread, int threads, void* node);
    static void gather_op(ggml_tensor* out, int thread, int threads, void* node);
    static void make_op(ggml_tensor* out, int thread, int threads, void* node);
    static void multiply_op(ggml_tensor* out, int thread, int threads, void* node);
    static void combine_op(ggml_tensor* out, int thread, int threads, void* node);
    static void multiply_rows(const Node& node, const Matrix& matrix, int expert, int first, int last, const uint8_t* activations, float* out,
                              size_t stride);

    Routing routing_;
    const Kernels* kernels_;
    const RowKernels& rows_kernels_;
    ThreadTeam& team_;
    std::vector<std::vector<float>> scratch_;  // by thread: rows of a tile, and one more
    std::vector<Tile> tiles_;                  // of all entries, as routed last
    const int* rows_ = nullptr;
    int most_ = 0;
    std::deque<Node> nodes_;  // a deque: ggml keeps their addresses
};

}  // namespace tokenloom
