#include "graph/expert_op.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <cstring>

#include "graph/products.h"

namespace tokenloom {

namespace {

constexpr int kGroupsOfItem = 2;
constexpr int kRowsOfItem = kGroupsOfItem * kGroupRows;

const float* row_of(const ggml_tensor* t, int row) {
    return reinterpret_cast<const float*>(static_cast<const uint8_t*>(t->data) + static_cast<size_t>(row) * t->nb[1]);
}

const float* numbers(const ggml_tensor* t) { return t == nullptr ? nullptr : static_cast<const float*>(t->data); }

int items_of(const Matrix& matrix) { return static_cast<int>((matrix.weight->ne[1] + kRowsOfItem - 1) / kRowsOfItem); }

}  // namespace

void ExpertOps::count_rows(const int* rows, int most) {
    rows_ = rows;
    most_ = most;
    routing_.reserve(most);
    const auto entries = static_cast<size_t>(most) * static_cast<size_t>(routing_.used());
    tiles_.reserve(entries / kTileTokens + static_cast<size_t>(routing_.experts()) + 1);
}

ExpertOps::Form ExpertOps::form_of(const std::vector<Matrix>& stack) {
    const Matrix& any = stack[0];
    if (any.packed != nullptr) {
        return {true, any.packed->form(), GGML_TYPE_F32};
    }
    return {false, ActivationForm::whole, ggml_get_type_traits_cpu(any.weight->type)->vec_dot_type};
}

ggml_tensor* ExpertOps::node(ggml_context* context, Node&& made, ggml_type type, int64_t first, int64_t second,
                             std::vector<ggml_tensor*> operands, ggml_custom_op_t op, int tasks) {
    made.owner = this;
    made.rows = rows_;
    return ggml_custom_4d(context, type, first, second, 1, 1, operands.data(), static_cast<int>(operands.size()), op, tasks,
                          &nodes_.emplace_back(std::move(made)));
}

ggml_tensor* ExpertOps::activations(ggml_context* context, Node&& made, std::vector<ggml_tensor*> operands, ggml_custom_op_t op) {
    const auto bytes = static_cast<int64_t>(activation_offset(made.form, made.columns, most_ * routing_.used()));
    for (std::vector<float>& own : scratch_) {
        own.resize(std::max(own.size(), static_cast<size_t>(made.columns) * (kTileTokens + 1)));
    }
    return node(context, std::move(made), GGML_TYPE_I8, bytes, 1, std::move(operands), op, GGML_N_TASKS_MAX);
}

// Where the activations of so many entries end.
size_t ExpertOps::activation_offset(const Form& form, int64_t columns, int entries) {
    return form.ours ? activation_bytes(form.form, entries, columns) : static_cast<size_t>(entries) * ggml_row_size(form.type, columns);
}

ggml_tensor* ExpertOps::route(ggml_context* context, ggml_tensor* logits, const float* choice_bias) {
    Node chosen{};
    chosen.choice_bias = choice_bias;
    ggml_tensor* done = node(context, std::move(chosen), GGML_TYPE_F32, 1, 1, {logits}, choose_op, GGML_N_TASKS_MAX);
    return node(context, {}, GGML_TYPE_F32, 1, 1, {done}, arrange_op, 1);
}

ggml_tensor* ExpertOps::gather(ggml_context* context, ggml_tensor* rows, ggml_tensor* routed, const Form& form) {
    Node made{};
    made.form = form;
    made.columns = rows->ne[0];
    return activations(context, std::move(made), {rows, routed}, gather_op);
}

ggml_tensor* ExpertOps::make(ggml_context* context, const MultiplyOps::Made& what, const Form& form) {
    Node made{};
    made.made = what;
    made.form = form;
    made.columns = what.columns();
    return activations(context, std::move(made), {what.x}, make_op);
}

ggml_tensor* ExpertOps::multiply(ggml_context* context, const std::vector<const std::vector<Matrix>*>& stacks, ggml_tensor* activations,
                                 const Form& form) {
    Node made{};
    made.form = form;
    made.stacks = stacks;
    made.columns = (*stacks[0])[0].weight->ne[0];
    int64_t rows = 0;
    for (const std::vector<Matrix>* stack : stacks) {
        rows += (*stack)[0].weight->ne[1];
    }
    return node(context, std::move(made), GGML_TYPE_F32, rows, int64_t{most_} * routing_.used(), {activations}, multiply_op,
                GGML_N_TASKS_MAX);
}

ggml_tensor* ExpertOps::combine(ggml_context* context, ggml_tensor* entries, float factor, ggml_tensor* before) {
    Node made{};
    made.factor = factor;
    std::vector<ggml_tensor*> operands{entries};
    if (before != nullptr) {
        operands.push_back(before);
    }
    return node(context, std::move(made), GGML_TYPE_F32, entries->ne[0], most_, std::move(operands), combine_op, GGML_N_TASKS_MAX);
}

void ExpertOps::choose_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    node.owner->team_.share(*node.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            node.owner->routing_.choose(row, row_of(out->src[0], row), node.choice_bias);
        }
    });
}

void ExpertOps::arrange_op(ggml_tensor*, int thread, int, void* op) {
    if (thread != 0) {
        return;
    }
    const auto& node = *static_cast<const Node*>(op);
    ExpertOps& self = *node.owner;
    self.routing_.arrange(*node.rows);
    self.tiles_.clear();
    for (int expert = 0; expert < self.routing_.experts(); ++expert) {
        for (int tile = 0; tile < tile_count(self.routing_.count(expert)); ++tile) {
            self.tiles_.push_back({expert, tile});
        }
    }
}

// A tile of the expert's entries, whose rows follow each other in the source.
void ExpertOps::write_entries(const Node& node, const ActivationSource& source, int expert, int tile, uint8_t* out, int worker) {
    const int count = routing_.count(expert);
    const int first = tile_first_row(count, tile);
    const int tokens = tile_first_row(count, tile + 1) - first;
    uint8_t* to = out + activation_offset(node.form, node.columns, routing_.first(expert) + first);
    if (node.form.ours) {
        rows_kernels_.write_tile(source, node.form.form, 0, tokens, 0, source.columns, to);
        return;
    }
    const ggml_from_float_t convert = ggml_get_type_traits_cpu(node.form.type)->from_float;
    const size_t bytes = ggml_row_size(node.form.type, source.columns);
    float* whole = scratch_[static_cast<size_t>(worker)].data() + static_cast<size_t>(source.columns) * kTileTokens;
    for (int row = 0; row < tokens; ++row) {
        ActivationSource one = source;
        one.data += static_cast<size_t>(row) * source.stride;
        rows_kernels_.write_tile(one, ActivationForm::whole, 0, 1, 0, source.columns, reinterpret_cast<uint8_t*>(whole));
        uint8_t* at = to + static_cast<size_t>(row) * bytes;
        if (convert == nullptr) {
            std::memcpy(at, whole, bytes);
        } else {
            convert(whole, at, source.columns);
        }
    }
}

void ExpertOps::gather_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    ExpertOps& self = *node.owner;
    const Routing& routing = self.routing_;
    const auto columns = static_cast<size_t>(node.columns);
    self.team_.share(static_cast<int>(self.tiles_.size()), thread, threads, [&](int begin, int end, int worker) {
        float* rows = self.scratch_[static_cast<size_t>(worker)].data();
        for (int i = begin; i < end; ++i) {
            const auto [expert, tile] = self.tiles_[static_cast<size_t>(i)];
            const int first = tile_first_row(routing.count(expert), tile);
            const int last = tile_first_row(routing.count(expert), tile + 1);
            for (int entry = first; entry < last; ++entry) {
                std::memcpy(rows + static_cast<size_t>(entry - first) * columns,
                            row_of(out->src[0], routing.row_of(routing.first(expert) + entry)), columns * sizeof(float));
            }
            const ActivationSource source{ActivationSource::plain, rows, columns, node.columns};
            self.write_entries(node, source, expert, tile, static_cast<uint8_t*>(out->data), worker);
        }
    });
}

void ExpertOps::make_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    ExpertOps& self = *node.owner;
    const ggml_tensor* x = out->src[0];
    self.team_.share(static_cast<int>(self.tiles_.size()), thread, threads, [&](int begin, int end, int worker) {
        for (int i = begin; i < end; ++i) {
            const auto [expert, tile] = self.tiles_[static_cast<size_t>(i)];
            const int first = self.routing_.first(expert) + tile_first_row(self.routing_.count(expert), tile);
            const ActivationSource source{node.made.kind,   row_of(x, first),  x->nb[1] / sizeof(float), node.columns,
                                          node.made.weight, node.made.epsilon, node.made.bias};
            self.write_entries(node, source, expert, tile, static_cast<uint8_t*>(out->data), worker);
        }
    });
}

// Rows `first` to `last` - 1 of a matrix that ggml multiplies, with all of the expert's entries.
void ExpertOps::multiply_rows(const Node& node, const Matrix& matrix, int expert, int first, int last, const uint8_t* activations, float* out,
                              size_t stride) {
    const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(matrix.weight->type);
    const size_t bytes = ggml_row_size(node.form.type, node.columns);
    for (int entry = 0; entry < node.owner->routing_.count(expert); ++entry) {
        float* to = out + static_cast<size_t>(entry) * stride;
        for (int row = first; row < last; ++row) {
            traits->vec_dot(static_cast<int>(node.columns), to + row, 0, static_cast<const uint8_t*>(matrix.weight->data) + static_cast<size_t>(row) * matrix.weight->nb[1],
                            0, activations + static_cast<size_t>(entry) * bytes, 0, 1);
        }
        const float* bias = numbers(matrix.bias);
        finish({numbers(matrix.scale), bias == nullptr ? nullptr : bias + first}, to + first, 0, 1, last - first);
    }
}

void ExpertOps::multiply_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    ExpertOps& self = *node.owner;
    const Routing& routing = self.routing_;
    const auto* activations = static_cast<const uint8_t*>(out->src[0]->data);
    const auto stride = static_cast<size_t>(out->ne[0]);
    int items = 0;  // of one expert
    for (const std::vector<Matrix>* stack : node.stacks) {
        items += items_of((*stack)[0]);
    }
    self.team_.share(routing.experts() * items, thread, threads, [&](int begin, int end, int) {
        for (int i = begin; i < end; ++i) {
            const int expert = i / items;
            const int count = routing.count(expert);
            if (count == 0) {
                continue;
            }
            int item = i % items;
            size_t part_row = 0;
            auto stack = node.stacks.begin();
            for (; item >= items_of((**stack)[0]); ++stack) {
                item -= items_of((**stack)[0]);
                part_row += static_cast<size_t>((**stack)[0].weight->ne[1]);
            }
            const Matrix& matrix = (**stack)[static_cast<size_t>(expert)];
            const uint8_t* tiles = activations + activation_offset(node.form, node.columns, routing.first(expert));
            float* to = static_cast<float*>(out->data) + static_cast<size_t>(routing.first(expert)) * stride + part_row;
            if (matrix.packed == nullptr) {
                const auto rows = static_cast<int>(matrix.weight->ne[1]);
                multiply_rows(node, matrix, expert, item * kRowsOfItem, std::min(rows, (item + 1) * kRowsOfItem), tiles, to, stride);
                continue;
            }
            const int first = item * kGroupsOfItem;
            const int last = std::min(matrix.packed->groups(), first + kGroupsOfItem);
            const int all = tile_count(count);
            for (int tile = 0; tile < all; tile += kChunkTiles) {
                multiply_item(*self.kernels_, *matrix.packed, first, last, tiles, count, tile, std::min(all, tile + kChunkTiles), nullptr,
                              {to, stride, {numbers(matrix.scale), numbers(matrix.bias)}});
            }
        }
    });
}

void ExpertOps::combine_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const Routing& routing = node.owner->routing_;
    const int columns = static_cast<int>(out->ne[0]);
    node.owner->team_.share(*node.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            auto* to = reinterpret_cast<float*>(static_cast<uint8_t*>(out->data) + static_cast<size_t>(row) * out->nb[1]);
            for (int place = 0; place < routing.used(); ++place) {
                const float* from = row_of(out->src[0], routing.entry(row, place));
                const float weight = routing.weight(row, place);
                for (int i = 0; i < columns; ++i) {
                    to[i] = place == 0 ? from[i] * weight : to[i] + from[i] * weight;
                }
            }
            Epilogue how;
            how.factor = node.factor;
            how.added = out->src[1] == nullptr ? nullptr : row_of(out->src[1], row);
            finish(how, to, 0, 1, columns);
        }
    });
}

}  // namespace tokenloom
