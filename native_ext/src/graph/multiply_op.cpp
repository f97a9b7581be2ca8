#include "graph/multiply_op.h"

#include <algorithm>
#include <utility>

#include "graph/products.h"

namespace tokenloom {

namespace {

constexpr int64_t kChunkBytes = int64_t{384} << 10;  // of an item's tiles, that they stay in the second-level cache
constexpr int kMostChunkGroups = 2;   // so that threads end at about the same time
constexpr int kItemsPerThread = 16;
constexpr int kItemNumbers = 4096;    // of an item of rounding, about 1 us
constexpr int kMostTileParts = 4;     // each of which normalizes anew,
constexpr int kTilesPerThread = 4;    // so that more tiles than these are not cut

int chunks_of(int count, int size) { return (count + size - 1) / size; }

}  // namespace

ggml_tensor* MultiplyOps::quantize(ggml_context* context, const Made& made, ActivationForm form) {
    const int64_t columns = made.columns();
    const auto bytes = static_cast<int64_t>(activation_bytes(form, static_cast<int>(made.x->ne[1]), columns));
    return make(context, made, form, GGML_TYPE_I8, bytes, 1, quantize_op);
}

ggml_tensor* MultiplyOps::dense(ggml_context* context, const Made& made) {
    return make(context, made, ActivationForm::whole, GGML_TYPE_F32, made.columns(), made.x->ne[1], dense_op);
}

ggml_tensor* MultiplyOps::make(ggml_context* context, const Made& made, ActivationForm form, ggml_type type, int64_t first, int64_t second,
                               ggml_custom_op_t op) {
    Quantization& how = quantizations_.emplace_back(Quantization{&team_, &rounding_, rows_, made, form});
    ggml_tensor* operands[] = {made.x};
    return ggml_custom_4d(context, type, first, second, 1, 1, operands, 1, op, GGML_N_TASKS_MAX, &how);
}

ActivationSource MultiplyOps::source_of(const Quantization& how, const ggml_tensor* x) {
    return {how.made.kind, static_cast<const float*>(x->data), x->nb[1] / sizeof(float), how.made.columns(),
            how.made.weight,  how.made.epsilon, how.made.bias};
}

ggml_tensor* MultiplyOps::multiply(ggml_context* context, std::vector<Part> parts, ggml_tensor* quantized, int rows, const Ending& ending) {
    int64_t out_rows = 0;
    for (const Part& part : parts) {
        out_rows += part.matrix->rows();
    }
    const PackedMatrix& matrix = *parts[0].matrix;
    if (kernels_->many != nullptr && matrix.form() == ActivationForm::rounded && rows >= kManyTokens) {
        for (ArrangedTiles& room : arranged_) {
            room.reserve(kernels_->many->bytes(std::min(rows, kChunkTokens), matrix.group(0).blocks));
        }
    }
    Node& node = nodes_.emplace_back();
    node.team = &team_;
    node.kernels = kernels_;
    node.arranged = &arranged_;
    node.rows = rows_;
    node.parts = std::move(parts);
    node.factor = ending.factor;
    node.cap = ending.cap;
    ggml_tensor* operands[] = {quantized, ending.added};
    return ggml_custom_4d(context, GGML_TYPE_F32, out_rows, rows, 1, 1, operands, ending.added == nullptr ? 1 : 2, multiply_op,
                          GGML_N_TASKS_MAX, &node);
}

void MultiplyOps::quantize_op(ggml_tensor* out, int thread, int threads, void* quantization) {
    const auto& how = *static_cast<const Quantization*>(quantization);
    const ActivationSource source = source_of(how, out->src[0]);
    const int rows = *how.rows;
    const int tiles = tile_count(rows);
    if (tiles == 0) {
        return;
    }
    const int most_parts = std::min(kMostTileParts, chunks_of(how.team->threads() * kTilesPerThread, tiles));
    const int parts = static_cast<int>(std::clamp<int64_t>(rows / tiles * source.columns / kItemNumbers, 1, most_parts));
    const auto cut = [&](int part) { return part == parts ? source.columns : source.columns / kBlock * part / parts * kBlock; };
    how.team->share(tiles * parts, thread, threads, [&](int first, int last, int) {
        for (int item = first; item < last; ++item) {
            const int part = item % parts;
            write_tile(*how.kernels, source, how.form, rows, item / parts, cut(part), cut(part + 1), static_cast<uint8_t*>(out->data));
        }
    });
}

// A tile of one token holds its numbers as they follow each other.
void MultiplyOps::dense_op(ggml_tensor* out, int thread, int threads, void* quantization) {
    const auto& how = *static_cast<const Quantization*>(quantization);
    const ActivationSource source = source_of(how, out->src[0]);
    how.team->share(*how.rows, thread, threads, [&](int first, int last, int) {
        for (int row = first; row < last; ++row) {
            how.kernels->write_tile(source, ActivationForm::whole, row, 1, 0, source.columns,
                                    static_cast<uint8_t*>(out->data) + static_cast<size_t>(row) * out->nb[1]);
        }
    });
}

void MultiplyOps::multiply_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const Cut how = cut(node);
    node.team->share(how.tile_chunks * how.group_chunks, thread, threads,
                     [&](int first, int last, int who) { multiply_items(node, how, out, first, last, who); });
}

MultiplyOps::Cut MultiplyOps::cut(const Node& node) {
    const PackedMatrix& any = *node.parts[0].matrix;
    const auto tile_bytes = static_cast<int64_t>(activation_bytes(any.form(), kTileTokens, any.columns()));
    // Products of many tokens need so many in a chunk, and go through them panel after panel.
    const bool together = node.kernels->many != nullptr && any.form() == ActivationForm::rounded && *node.rows >= kManyTokens;
    const auto chunk_tiles = together ? kChunkTiles : static_cast<int>(std::clamp<int64_t>(kChunkBytes / tile_bytes, 1, kChunkTiles));
    Cut out{chunks_of(tile_count(*node.rows), chunk_tiles), 0, 0};
    int groups = 0;
    for (const Part& part : node.parts) {
        groups += part.matrix->groups();
    }
    out.chunk_groups = std::clamp(groups * out.tile_chunks / (node.team->threads() * kItemsPerThread), 1, kMostChunkGroups);
    for (const Part& part : node.parts) {
        out.group_chunks += chunks_of(part.matrix->groups(), out.chunk_groups);
    }
    return out;
}

void MultiplyOps::multiply_items(const Node& node, const Cut& cut, ggml_tensor* out, int first, int last, int thread) {
    const auto* tiles = static_cast<const uint8_t*>(out->src[0]->data);
    const auto* added = out->src[1] == nullptr ? nullptr : static_cast<const float*>(out->src[1]->data);
    auto* result = static_cast<float*>(out->data);
    const int rows = *node.rows;
    const auto stride = static_cast<size_t>(out->ne[0]);
    const int all_tiles = tile_count(rows);
    const auto tile_of = [&](int chunk) { return all_tiles * chunk / cut.tile_chunks; };
    const ManyTokens* many = node.kernels->many;
    int arranged_chunk = -1;
    const uint8_t* arranged = nullptr;

    for (int item = first; item < last; ++item) {
        const int tile_chunk = item / cut.group_chunks;
        int chunk = item % cut.group_chunks;
        size_t part_row = 0;
        auto part = node.parts.begin();
        for (int chunks; chunk >= (chunks = chunks_of(part->matrix->groups(), cut.chunk_groups)); ++part) {
            chunk -= chunks;
            part_row += static_cast<size_t>(part->matrix->rows());
        }
        const PackedMatrix& matrix = *part->matrix;
        const int group = chunk * cut.chunk_groups;
        const int first_tile = tile_of(tile_chunk);
        const int last_tile = tile_of(tile_chunk + 1);
        const bool together = many != nullptr && many->multiply[static_cast<int>(matrix.format())] != nullptr &&
                              tile_first_row(rows, last_tile) - tile_first_row(rows, first_tile) >= kManyTokens;
        if (together && arranged_chunk != tile_chunk) {  // all parts are of the same columns
            arranged = (*node.arranged)[thread].arrange(*many, tiles, rows, first_tile, last_tile, matrix.group(0).blocks);
            arranged_chunk = tile_chunk;
        }
        multiply_item(*node.kernels, matrix, group, std::min(group + cut.chunk_groups, matrix.groups()), tiles, rows, first_tile, last_tile,
                      together ? arranged : nullptr,
                      {result + part_row, stride,
                       {part->scale, part->bias, node.factor, node.cap, added == nullptr ? nullptr : added + part_row,
                        part->bias_first}});
    }
}

}  // namespace tokenloom
