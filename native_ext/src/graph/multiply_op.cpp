#include "graph/multiply_op.h"

#include <algorithm>
#include <utility>

namespace tokenloom {

namespace {

constexpr int kChunkTiles = 12;       // of an item
constexpr int kChunkTokens = kChunkTiles * kTileTokens;
constexpr int64_t kChunkBytes = int64_t{384} << 10;  // of an item's tiles, that they stay in the second-level cache
constexpr int kMostChunkGroups = 2;   // so that threads end at about the same time
constexpr int kItemsPerThread = 16;
constexpr int kItemNumbers = 4096;    // of an item of rounding, about 1 us
constexpr int kMostTileParts = 4;     // each of which normalizes anew,
constexpr int kTilesPerThread = 4;    // so that more tiles than these are not cut
constexpr int64_t kLine = 64;         // bytes of a cache line
constexpr int64_t kAhead = 8192;      // bytes

int chunks_of(int count, int size) { return (count + size - 1) / size; }

// Where the products of a matrix with all tokens go: its first row for token 0, and the floats from one token to the next. `added`
// lies as `out` does, or is null.
struct Products {
    float* out;
    const float* added;
    size_t stride;
};

// What kernel(out, stride) computes of `tokens` tokens from `row` on by a group of the matrix.
template <typename Kernel>
void multiply_group(const PackedMatrix& matrix, int group, int row, int tokens, const Products& products, const Kernel& kernel) {
    const int64_t begin = int64_t{group} * kGroupRows;
    const int64_t count = std::min<int64_t>(kGroupRows, matrix.rows() - begin);
    const size_t stride = products.stride;
    const size_t at = static_cast<size_t>(row) * stride + static_cast<size_t>(begin);
    float* out = products.out + at;
    if (count == kGroupRows) {
        kernel(out, stride);
    } else {
        float whole[kChunkTokens * kGroupRows];
        kernel(whole, size_t{kGroupRows});
        for (int t = 0; t < tokens; ++t) {
            std::copy_n(whole + t * kGroupRows, count, out + t * stride);
        }
    }
    if (products.added != nullptr) {
        for (int t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < count; ++i) {
                out[t * stride + i] += products.added[at + t * stride + i];
            }
        }
    }
}

// Groups `first` to `last` - 1 of the matrix by tiles `first_tile` to `last_tile` - 1 of `rows` tokens. `arranged`: these, for
// products of many tokens, or null.
void multiply_item(const Kernels& kernels, const PackedMatrix& matrix, int first, int last, const uint8_t* tiles, int rows, int first_tile,
                   int last_tile, const uint8_t* arranged, const Products& products) {
    const auto format = static_cast<int>(matrix.format());
    const int tile_count = last_tile - first_tile;
    const auto bytes = static_cast<int64_t>(matrix.group_bytes());
    const uint8_t* const end = matrix.data() + matrix.bytes();
    for (int g = first; g < last; ++g) {
        const PackedGroup group = matrix.group(g);
        // While the tiles' products with this group are computed the next one is on its way, which else would be waited for. One
        // tile reads the group as quickly as it comes, and asks for what lies a little further on.
        const uint8_t* next = group.data + (tile_count == 1 ? std::min(kAhead, bytes) : bytes);
        const int64_t next_bytes = std::min<int64_t>(bytes, end - next);
        if (arranged != nullptr) {
            const int row = tile_first_row(rows, first_tile);
            const int tokens = tile_first_row(rows, last_tile) - row;
            multiply_group(matrix, g, row, tokens, products, [&](float* out, size_t stride) {
                kernels.many->multiply[format](group, arranged, tokens, out, stride, {next, next + next_bytes});
            });
            continue;
        }
        for (int tile = first_tile; tile < last_tile; ++tile) {
            const int row = tile_first_row(rows, tile);
            const int tokens = tile_first_row(rows, tile + 1) - row;
            const uint8_t* tile_data = tiles + activation_bytes(matrix.form(), row, matrix.columns());
            const auto cut = [&](int i) { return next + next_bytes * i / tile_count / kLine * kLine; };
            const Fetch fetch{cut(tile - first_tile), cut(tile - first_tile + 1)};
            multiply_group(matrix, g, row, tokens, products, [&](float* out, size_t stride) {
                kernels.multiply[format](group, tile_data, tokens, out, stride, fetch);
            });
        }
    }
}

}  // namespace

ggml_tensor* MultiplyOps::quantize(ggml_context* context, ggml_tensor* x, ActivationForm form) {
    return quantize(context, x, x->ne[0], nullptr, {&team_, &rounding_, rows_, ActivationSource::plain, form, 0.0f});
}

ggml_tensor* MultiplyOps::quantize_normed(ggml_context* context, ggml_tensor* x, ActivationForm form, ggml_tensor* weight,
                                          float epsilon) {
    return quantize(context, x, x->ne[0], weight, {&team_, &rounding_, rows_, ActivationSource::normed, form, epsilon});
}

ggml_tensor* MultiplyOps::quantize_gated(ggml_context* context, ggml_tensor* x, ActivationForm form) {
    return quantize(context, x, x->ne[0] / 2, nullptr, {&team_, &rounding_, rows_, ActivationSource::gated, form, 0.0f});
}

ggml_tensor* MultiplyOps::quantize(ggml_context* context, ggml_tensor* x, int64_t columns, ggml_tensor* weight, Quantization how) {
    const auto bytes = static_cast<int64_t>(activation_bytes(how.form, static_cast<int>(x->ne[1]), columns));
    ggml_tensor* operands[] = {x, weight};
    return ggml_custom_4d(context, GGML_TYPE_I8, bytes, 1, 1, 1, operands, weight == nullptr ? 1 : 2, quantize_op, GGML_N_TASKS_MAX,
                          &quantizations_.emplace_back(how));
}

ggml_tensor* MultiplyOps::multiply(ggml_context* context, std::vector<const PackedMatrix*> parts, ggml_tensor* quantized, int rows,
                                   ggml_tensor* added) {
    int64_t out_rows = 0;
    for (const PackedMatrix* part : parts) {
        out_rows += part->rows();
    }
    const PackedMatrix& matrix = *parts[0];
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
    ggml_tensor* operands[] = {quantized, added};
    return ggml_custom_4d(context, GGML_TYPE_F32, out_rows, rows, 1, 1, operands, added == nullptr ? 1 : 2, multiply_op,
                          GGML_N_TASKS_MAX, &node);
}

void MultiplyOps::quantize_op(ggml_tensor* out, int thread, int threads, void* quantization) {
    const auto& how = *static_cast<const Quantization*>(quantization);
    const ggml_tensor* x = out->src[0];
    const ggml_tensor* weight = out->src[1];
    const ActivationSource source{how.kind, static_cast<const float*>(x->data), x->nb[1] / sizeof(float),
                                  how.kind == ActivationSource::gated ? x->ne[0] / 2 : x->ne[0],
                                  weight == nullptr ? nullptr : static_cast<const float*>(weight->data), how.epsilon};
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

void MultiplyOps::multiply_op(ggml_tensor* out, int thread, int threads, void* op) {
    const auto& node = *static_cast<const Node*>(op);
    const Cut how = cut(node);
    node.team->share(how.tile_chunks * how.group_chunks, thread, threads,
                     [&](int first, int last, int who) { multiply_items(node, how, out, first, last, who); });
}

MultiplyOps::Cut MultiplyOps::cut(const Node& node) {
    const PackedMatrix& any = *node.parts[0];
    const auto tile_bytes = static_cast<int64_t>(activation_bytes(any.form(), kTileTokens, any.columns()));
    // Products of many tokens need so many in a chunk, and go through them panel after panel.
    const bool together = node.kernels->many != nullptr && any.form() == ActivationForm::rounded && *node.rows >= kManyTokens;
    const auto chunk_tiles = together ? kChunkTiles : static_cast<int>(std::clamp<int64_t>(kChunkBytes / tile_bytes, 1, kChunkTiles));
    Cut out{chunks_of(tile_count(*node.rows), chunk_tiles), 0, 0};
    int groups = 0;
    for (const PackedMatrix* part : node.parts) {
        groups += part->groups();
    }
    out.chunk_groups = std::clamp(groups * out.tile_chunks / (node.team->threads() * kItemsPerThread), 1, kMostChunkGroups);
    for (const PackedMatrix* part : node.parts) {
        out.group_chunks += chunks_of(part->groups(), out.chunk_groups);
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
        for (int chunks; chunk >= (chunks = chunks_of((*part)->groups(), cut.chunk_groups)); ++part) {
            chunk -= chunks;
            part_row += static_cast<size_t>((*part)->rows());
        }
        const PackedMatrix& matrix = **part;
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
                      {result + part_row, added == nullptr ? nullptr : added + part_row, stride});
    }
}

}  // namespace tokenloom
