#include "attention_op.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tokenloom {

namespace {
constexpr int kTileQueries = 48;  // their inputs and outputs fit the first-level cache beside a page
constexpr int kStoreRows = 8;     // of an item
}

AttentionOps::AttentionOps(const HParams& hparams, KvPool& pool, ThreadTeam& team)
    : hparams_(hparams),
      pool_(pool),
      team_(team),
      group_(hparams.heads / hparams.kv_heads),
      tile_rows_(std::max(1, kTileQueries / group_)),
      scale_(1.0f / std::sqrt(static_cast<float>(hparams.head_size))),
      ops_(new LayerOp[hparams.layers]) {
    for (int layer = 0; layer < hparams.layers; ++layer) {
        ops_[layer].owner = this;
        ops_[layer].layer = layer;
    }
    for (int i = 0; i < team.threads(); ++i) {
        scratch_.push_back({AttentionScratch(hparams.head_size, tile_rows_ * group_), {}});
    }
}

void AttentionOps::prepare(const FlatBatch& batch) {
    batch_ = &batch;
    tiles_.clear();
    for (const Run& run : batch.runs) {
        for (int first = 0; first < run.rows; first += tile_rows_) {
            tiles_.push_back({&run, first, std::min(tile_rows_, run.rows - first)});
        }
    }
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
        const auto cost = [](const Tile& t) { return int64_t{t.rows} * (t.run->first_position + t.first + t.rows); };
        return cost(a) > cost(b);
    });
    for (Scratch& scratch : scratch_) {  // not in the op: nothing may be thrown there
        size_t most = 0;
        for (const Run& run : batch.runs) {
            most = std::max(most, run.pages.size());
        }
        scratch.pages.resize(most);
    }
}

ggml_tensor* AttentionOps::store(ggml_context* context, int layer, ggml_tensor* key, ggml_tensor* value) {
    ggml_tensor* operands[] = {key, value};
    return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, operands, 2, store_op, GGML_N_TASKS_MAX, &ops_[layer]);
}

ggml_tensor* AttentionOps::attend(ggml_context* context, int layer, ggml_tensor* query, ggml_tensor* stored) {
    ggml_tensor* operands[] = {query, stored};
    const int64_t width = int64_t{hparams_.heads} * hparams_.head_size;
    const int64_t rows = ggml_nelements(query) / width;
    return ggml_custom_4d(context, GGML_TYPE_F32, width, rows, 1, 1, operands, 2, attend_op, GGML_N_TASKS_MAX, &ops_[layer]);
}

void AttentionOps::store_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    const auto row_of = [](const ggml_tensor* t, size_t row) {
        return reinterpret_cast<const float*>(static_cast<const uint8_t*>(t->data) + row * t->nb[2]);
    };
    const std::span<const Slot> slots = owner.batch_->slots;
    const auto rows = static_cast<int>(slots.size());
    owner.team_.share((rows + kStoreRows - 1) / kStoreRows, thread, threads, [&](int first, int last, int) {
        for (int row = first * kStoreRows; row < std::min(last * kStoreRows, rows); ++row) {
            owner.pool_.write(slots[row].page, slots[row].offset, self.layer, row_of(out->src[0], row), row_of(out->src[1], row));
        }
    });
}

void AttentionOps::attend_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& self = *static_cast<const LayerOp*>(op);
    AttentionOps& owner = *self.owner;
    const auto* query = static_cast<const float*>(out->src[0]->data);
    auto* result = static_cast<float*>(out->data);
    const int kv_heads = owner.hparams_.kv_heads;
    const int items = static_cast<int>(owner.tiles_.size()) * kv_heads;
    owner.team_.share(items, thread, threads, [&](int first, int last, int worker) {
        for (int item = first; item < last; ++item) {
            owner.attend_tile(owner.tiles_[item / kv_heads], self.layer, item % kv_heads, query, result, owner.scratch_[worker]);
        }
    }, 1);
    const int rows = owner.batch_->rows();
    if (thread == 0 && out->ne[1] > rows) {  // a row of padding
        std::memset(result + static_cast<size_t>(rows) * out->ne[0], 0, static_cast<size_t>(out->ne[1] - rows) * out->ne[0] * sizeof(float));
    }
}

void AttentionOps::attend_tile(const Tile& tile, int layer, int kv_head, const float* query, float* out, Scratch& scratch) const {
    const int first_position = tile.run->first_position + tile.first;
    const int pages = (first_position + tile.rows - 1) / kPageSize + 1;
    for (int i = 0; i < pages; ++i) {
        const Page page = tile.run->pages[i];
        scratch.pages[i] = {pool_.keys(page, layer, kv_head), pool_.values(page, layer, kv_head)};
    }
    const size_t stride = static_cast<size_t>(hparams_.heads) * hparams_.head_size;
    const size_t begin = static_cast<size_t>(tile.run->first_row + tile.first) * stride +
                         static_cast<size_t>(kv_head) * group_ * hparams_.head_size;
    const AttentionTile work{tile.rows, first_position, group_, hparams_.head_size, scale_, query + begin, out + begin, stride};
    tokenloom::attend(work, scratch.pages.data(), scratch.attention);
}

}  // namespace tokenloom
