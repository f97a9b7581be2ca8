#include "graph/attention_op.h"

#include <algorithm>
#include <cstring>

#include "kernels/activations.h"

namespace tokenloom {

namespace {
constexpr int kStoreRows = kPositionsTogether;  // of an item
}

AttentionOps::AttentionOps(const HParams& hparams, const ggml_tensor* rope_factors, KvPool& pool, const Kernels* kernels, ThreadTeam& team)
    : shape_{hparams.heads, hparams.kv_heads, hparams.head_size},
      rope_(hparams.rope, rope_factors == nullptr ? nullptr : static_cast<const float*>(rope_factors->data)),
      pool_(pool),
      kernels_(attention_kernels_of(kernels)),
      storing_(row_kernels_of(kernels)),
      team_(team) {
    for (int layer = 0; layer < hparams.layers; ++layer) {
        ops_.push_back({this, layer});
    }
    for (int i = 0; i < team.threads(); ++i) {
        scratch_.emplace_back(shape_);
    }
}

void AttentionOps::prepare(const FlatBatch& batch, int rows) {
    batch_ = &batch;
    padded_rows_ = rows;
    plan_ = plan_attention(batch.runs, shape_, team_.threads());
    stored_.resize(plan_.stored_floats);  // not in the op: nothing may be thrown there
    const size_t floats = static_cast<size_t>(rope_.angle_floats());
    angles_.resize(batch.slots.size() * floats);
    team_.run(static_cast<int>(batch.slots.size()), [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            rope_.angles(batch.slots[static_cast<size_t>(row)].position, angles_.data() + static_cast<size_t>(row) * floats);
        }
    });
    const size_t counters = plan_.tiles.size() * shape_.kv_heads;
    if (unfinished_size_ < counters) {
        unfinished_ = std::make_unique<std::atomic<int>[]>(counters);
        unfinished_size_ = counters;
    }
    for (size_t i = 0; i < counters; ++i) {
        unfinished_[i].store(plan_.tiles[i / shape_.kv_heads].pieces, std::memory_order_relaxed);
    }
}

ggml_tensor* AttentionOps::store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value) {
    ggml_tensor* operands[] = {key, value};
    return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, operands, 2, store_op, GGML_N_TASKS_MAX, &ops_[layer]);
}

ggml_tensor* AttentionOps::attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored) {
    ggml_tensor* operands[] = {query, stored};
    const int64_t width = int64_t{shape_.heads} * shape_.head_size;
    const int64_t rows = ggml_nelements(query) / width;
    return ggml_custom_4d(context, GGML_TYPE_F32, width, rows, 1, 1, operands, 2, attend_op, GGML_N_TASKS_MAX, &ops_[layer]);
}

void AttentionOps::store_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    const auto row_of = [](const ggml_tensor* t, size_t row) {
        return reinterpret_cast<const float*>(static_cast<const uint8_t*>(t->data) + row * t->nb[1]);
    };
    const std::span<const Slot> slots = owner.batch_->slots;
    const AttentionShape& shape = owner.shape_;
    const auto rows = static_cast<int>(slots.size());
    // Neighbouring positions' keys share cache lines: each thread takes stretches of rows.
    owner.team_.share((rows + kStoreRows - 1) / kStoreRows, thread, threads, [&](int first, int last, int worker) {
        float* turned = owner.scratch_[static_cast<size_t>(worker)].queries;
        const auto size = static_cast<size_t>(shape.head_size);
        const int end = std::min(last * kStoreRows, rows);
        for (int row = first * kStoreRows, count; row < end; row += count) {
            const Slot& slot = slots[row];
            for (count = 1; count < kStoreRows && row + count < end; ++count) {  // that follow each other in a page
                if (slots[row + count].page != slot.page || slots[row + count].offset != slot.offset + count) {
                    break;
                }
            }
            for (int head = 0; head < shape.kv_heads; ++head) {
                for (int i = 0; i < count; ++i) {
                    Rope::turn(row_of(out->src[0], row + i) + head * size, shape.head_size,
                               owner.angles_.data() + static_cast<size_t>(row + i) * owner.rope_.angle_floats(), owner.rope_.dimensions(), 1.0f,
                               turned + i * size);
                }
                owner.pool_.write(owner.storing_, slot.page, slot.offset, self.layer, head,
                                  {count, turned, size, row_of(out->src[1], row) + head * size, out->src[1]->nb[1] / sizeof(float)});
            }
        }
    });
}

void AttentionOps::attend_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    const AttentionPlan& plan = owner.plan_;
    if (owner.batch_->outputs.empty() && &self == &owner.ops_.back()) {  // nobody asks for what the last layer mixes
        return;
    }
    const int kv_heads = owner.shape_.kv_heads;
    auto* result = static_cast<float*>(out->data);
    const AttentionWork work{owner.kernels_,
                             owner.shape_,
                             plan,
                             owner.batch_->runs,
                             owner.pool_,
                             self.layer,
                             static_cast<const float*>(out->src[0]->data),
                             out->src[0]->nb[1] / sizeof(float),
                             owner.angles_.data(),
                             owner.rope_.dimensions(),
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
            std::atomic<int>& unfinished = owner.unfinished_[static_cast<size_t>(item.tile) * kv_heads + head];
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
