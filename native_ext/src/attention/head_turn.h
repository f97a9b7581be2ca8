// What becomes of a query's or key's head before its product: the norm, if the model has one, and the turn by its position.

#pragma once

#include <cstddef>

#include "attention/rope.h"

namespace tokenloom {

// How the heads of a layer's queries, or of its keys, are made. `weight` belongs to a norm.
struct HeadTurn {
    // rows: of each row as a whole, by the factors in row_factors; rms, layer: of each head alone.
    enum class Norm { none, rows, rms, layer };

    Norm norm = Norm::none;
    bool norm_after = false;             // the turn, not before it
    bool weight_per_head = false;        // float32 [heads][size], otherwise [size]; of Norm::rows always the former
    const float* weight = nullptr;
    float epsilon = 0.0f;
    const float* row_factors = nullptr;  // float32 [rows of the batch]: 1 / sqrt(mean(row^2) + epsilon)
    RopeOrder order = RopeOrder::neighbours;
    const float* angles = nullptr;       // float32 [rows of the batch][2 * turned] (rope.h); null with turned = 0
    int turned = 0;                      // dimensions of a head
    const float* row_scales = nullptr;   // float32 [rows of the batch] that heads are multiplied by, or null

    // to = the head of `size` numbers of the batch's row, times `scale`.
    void make(const float* x, size_t row, int head, int size, float scale, float* to) const {
        if (norm == Norm::none && row_scales == nullptr) {
            Rope::turn(x, size, angles + row * 2 * static_cast<size_t>(turned), turned, order, scale, to);
        } else {
            make_other(x, row, head, size, scale, to);
        }
    }

private:
    void make_other(const float* x, size_t row, int head, int size, float scale, float* to) const;
};

// 1 / sqrt(mean(x^2) + epsilon), in one order of operations.
float inverse_rms(const float* x, int count, float epsilon);

}  // namespace tokenloom
