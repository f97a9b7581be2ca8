#include "graph/attention_op.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/activations.h"

namespace tokenloom {

namespace {
constexpr int kStoreRows = kPositionsTogether;  // of an item
}

AttentionOps::AttentionOps(const Model& model, KvPool& pool, const Kernels* kernels, ThreadTeam& team)
    : model_(model.description()),
      pool_(pool),
      kernels_(attention_kernels_of(kernels)),
      storing_(row_kernels_of(kernels)),
      team_(team) {
    for (size_t i = 0; i < model_.ropes.size(); ++i) {
        const ggml_tensor* factors = model.rope_factors()[i];
        ropes_.emplace_back(model_.ropes[i].params, factors == nullptr ? nullptr : static_cast<const float*>(factors->data));
    }
    angles_.resize(ropes_.size());
    const auto data = [](const ggml_tensor* t) { return t == nullptr ? nullptr : static_cast<const float*>(t->data); };
    std::vector<int> cells;  // of the pool, by layer
    int stored = 0;
    for (int i = 0; i < model_.layers(); ++i) {
        const LayerAttention& a = model_.attention[static_cast<size_t>(i)];
        const Layer& layer = model.layers()[static_cast<size_t>(i)];
        cells.push_back(a.cells == i ? stored++ : cells[static_cast<size_t>(a.cells)]);
        const AttentionShape shape{a.heads, a.kv_heads, a.key_size, a.value_size, a.window};
        const auto same = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& kind) { return kind.shape == shape; });
        const auto kind = static_cast<size_t>(same - kinds_.begin());
        if (same == kinds_.end()) {
            kinds_.emplace_back().shape = shape;
        }
        const auto turn = [&](const ggml_tensor* norm) {
            HeadTurn out;
            if (norm != nullptr) {
                out.norm = model_.head_norm == HeadNorm::row               ? HeadTurn::Norm::rows
                           : model_.head_norm_kind == NormKind::layer ? HeadTurn::Norm::layer
                                                                      : HeadTurn::Norm::rms;
                out.weight_per_head = norm->ne[0] != a.key_size || norm->ne[1] > 1;
                out.weight = data(norm);
            }
            out.norm_after = model_.head_norm_after_turn;
            out.epsilon = model_.epsilon;
            out.order = a.rope < 0 ? RopeOrder::neighbours : model_.ropes[static_cast<size_t>(a.rope)].order;
            return out;
        };
        ops_.push_back({this, i, cells.back(), kind, a.divisor, a.rope, turn(layer.query_norm), turn(layer.key_norm), data(layer.sinks)});
    }
    std::vector<AttentionShape> shapes;
    for (const Kind& kind : kinds_) {
        shapes.push_back(kind.shape);
    }
    for (int i = 0; i < team.threads(); ++i) {
        scratch_.emplace_back(shapes);
    }
}

void AttentionOps::prepare(const FlatBatch& batch, int rows) {
    batch_ = &batch;
    padded_rows_ = rows;
    size_t most_stored = 0;
    for (Kind& kind : kinds_) {
        prepare(kind);
        most_stored = std::max(most_stored, kind.plan.stored_floats);
    }
    stored_.resize(most_stored);  // not in the op: nothing may be thrown there
    const size_t count = batch.slots.size();
    for (size_t i = 0; i < ropes_.size(); ++i) {
        const Rope& rope = ropes_[i];
        const auto floats = static_cast<size_t>(rope.angle_floats());
        angles_[i].resize(count * floats);
        team_.run(static_cast<int>(count), [&](int first, int last, int) {
            for (int row = first; row < last; ++row) {
                rope.angles(batch.slots[static_cast<size_t>(row)].position, angles_[i].data() + static_cast<size_t>(row) * floats);
            }
        });
    }
    if (model_.temperature != 0.0f) {
        query_scales_.clear();
        for (const Slot& slot : batch.slots) {
            const int times = slot.position / model_.temperature_length;
            // On long double, whose functions are of one kind on every x86.
            query_scales_.push_back(static_cast<float>(1 + model_.temperature * std::log(1.0L + times)));
        }
    }
    if (model_.head_norm == HeadNorm::row) {
        row_factors_[0].resize(count);
        row_factors_[1].resize(count);
    }
}

void AttentionOps::prepare(Kind& kind) {
    kind.plan = plan_attention(batch_->runs, kind.shape, team_.threads());
    const auto kv_heads = static_cast<size_t>(kind.shape.kv_heads);
    const size_t counters = kind.plan.tiles.size() * kv_heads;
    if (kind.unfinished_size < counters) {
        kind.unfinished = std::make_unique<std::atomic<int>[]>(counters);
        kind.unfinished_size = counters;
    }
    for (size_t i = 0; i < counters; ++i) {
        kind.unfinished[i].store(kind.plan.tiles[i / kv_heads].pieces, std::memory_order_relaxed);
    }
}

// With what is of this batch.
HeadTurn AttentionOps::turn_of(const LayerOp& op, const HeadTurn& turn) const {
    HeadTurn out = turn;
    const bool of_query = &turn == &op.query;
    if (op.rope >= 0) {
        out.angles = angles_[static_cast<size_t>(op.rope)].data();
        out.turned = ropes_[static_cast<size_t>(op.rope)].dimensions();
    }
    out.row_factors = row_factors_[of_query ? 0 : 1].data();
    out.row_scales = of_query && !query_scales_.empty() ? query_scales_.data() : nullptr;
    return out;
}

ggml_tensor* AttentionOps::store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value, ggml_tensor* query) {
    ggml_tensor* operands[] = {key, value, query};
    return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, operands, query == nullptr ? 2 : 3, store_op, GGML_N_TASKS_MAX, &ops_[layer]);
}

ggml_tensor* AttentionOps::attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored) {
    ggml_tensor* operands[] = {query, stored};
    const AttentionShape& shape = kinds_[ops_[layer].kind].shape;
    const int64_t rows = ggml_nelements(query) / (int64_t{shape.heads} * shape.key_size);
    return ggml_custom_4d(context, GGML_TYPE_F32, int64_t{shape.heads} * shape.value_size, rows, 1, 1, operands, 2, attend_op,
                          GGML_N_TASKS_MAX, &ops_[layer]);
}

void AttentionOps::store_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    const auto row_of = [](const ggml_tensor* t, size_t row) {
        return reinterpret_cast<const float*>(static_cast<const uint8_t*>(t->data) + row * t->nb[1]);
    };
    const std::span<const Slot> slots = owner.batch_->slots;
    const AttentionShape& shape = owner.kinds_[self.kind].shape;
    const auto rows = static_cast<int>(slots.size());
    const HeadTurn turn = owner.turn_of(self, self.key);
    // Neighbouring positions' keys share cache lines: each thread takes stretches of rows.
    owner.team_.share((rows + kStoreRows - 1) / kStoreRows, thread, threads, [&](int first, int last, int worker) {
        float* turned = owner.scratch_[static_cast<size_t>(worker)].queries;
        const auto key_size = static_cast<size_t>(shape.key_size);
        const auto value_size = static_cast<size_t>(shape.value_size);
        const int end = std::min(last * kStoreRows, rows);
        for (int row = first * kStoreRows, count; row < end; row += count) {
            const Slot& slot = slots[row];
            for (count = 1; count < kStoreRows && row + count < end; ++count) {  // that follow each other in a page
                if (slots[row + count].page != slot.page || slots[row + count].offset != slot.offset + count) {
                    break;
                }
            }
            if (turn.norm == HeadTurn::Norm::rows) {
                for (int i = row; i < row + count; ++i) {
                    owner.row_factors_[1][i] = inverse_rms(row_of(out->src[0], i), shape.kv_heads * shape.key_size, turn.epsilon);
                    if (out->src[2] != nullptr) {
                        owner.row_factors_[0][i] = inverse_rms(row_of(out->src[2], i), shape.heads * shape.key_size, turn.epsilon);
                    }
                }
            }
            for (int head = 0; head < shape.kv_heads; ++head) {
                for (int i = 0; i < count; ++i) {
                    const auto at = static_cast<size_t>(row + i);
                    turn.make(row_of(out->src[0], at) + head * key_size, at, head, shape.key_size, 1.0f, turned + i * key_size);
                }
                owner.pool_.write(owner.storing_, slot.page, slot.offset, self.cells, head,
                                  {count, turned, key_size, row_of(out->src[1], row) + head * value_size, out->src[1]->nb[1] / sizeof(float)});
            }
        }
    });
}

void AttentionOps::attend_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    Kind& kind = owner.kinds_[self.kind];
    const AttentionPlan& plan = kind.plan;
    if (owner.batch_->outputs.empty() && &self == &owner.ops_.back()) {  // nobody asks for what the last layer mixes
        return;
    }
    const int kv_heads = kind.shape.kv_heads;
    auto* result = static_cast<float*>(out->data);
    const HeadTurn turn = owner.turn_of(self, self.query);
    const AttentionWork work{owner.kernels_,
                             kind.shape,
                             plan,
                             owner.batch_->runs,
                             owner.pool_,
                             self.cells,
                             static_cast<const float*>(out->src[0]->data),
                             out->src[0]->nb[1] / sizeof(float),
                             turn,
                             self.sinks,
                             owner.model_.attention_cap,
                             self.divisor,
                             result,
                             owner.stored_.data()};
    const int items = static_cast<int>(plan.items.size()) * kv_heads;
    owner.team_.share(items, thread, threads, [&](int begin, int end, int worker) {
        for (int i = begin; i < end; ++i) {
            const AttentionPlan::Item& item = plan.items[static_cast<size_t>(i / kv_heads)];
            const AttentionPlan::Tile& tile = plan.tiles[static_cast<size_t>(item.tile)];
            const int head = i % kv_heads;
            const Ahead after =
                i + 1 < end ? first_keys(work, plan.items[static_cast<size_t>((i + 1) / kv_heads)], (i + 1) % kv_heads) : Ahead{};
            tokenloom::attend(work, item, head, owner.scratch_[static_cast<size_t>(worker)], after);
            if (tile.pieces == 1) {
                continue;
            }
            std::atomic<int>& unfinished = kind.unfinished[static_cast<size_t>(item.tile) * kv_heads + head];
            if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                unfinished.store(tile.pieces, std::memory_order_relaxed);  // for the next layer
                gather(work, tile, head);
            }
        }
    }, plan.most_at_once);
    const int rows = owner.batch_->rows();
    if (thread == 0 && owner.padded_rows_ > rows) {  // a row of padding
        std::memset(result + static_cast<size_t>(rows) * out->ne[0], 0,
                    static_cast<size_t>(owner.padded_rows_ - rows) * out->ne[0] * sizeof(float));
    }
}

}  // namespace tokenloom
