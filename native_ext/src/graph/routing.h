// Which rows use which experts: for each row its experts and their weights, and all of them in the order of the experts.
//
// A row's choice depends on its own logits alone. Ties go to the expert with the lower index.

#pragma once

#include <vector>

#include "models/description.h"

namespace tokenloom {

// A row's use of one of its experts is an entry. Entries of the same expert adjoin, in the order of rows.
class Routing {
public:
    explicit Routing(const Experts& experts) : experts_(experts) {}

    // Room for so many rows; before a forward.
    void reserve(int rows);
    // Row's experts, the most wanted first, from float32 logits [experts]; choice_bias: float32 [experts], or null.
    void choose(int row, const float* logits, const float* choice_bias);
    // The entries of `rows` rows that were chosen for.
    void arrange(int rows);

    int entries() const { return first_.back(); }
    int first(int expert) const { return first_[static_cast<size_t>(expert)]; }
    int count(int expert) const { return first(expert + 1) - first(expert); }
    int row_of(int entry) const { return rows_[static_cast<size_t>(entry)]; }
    int used() const { return experts_.used; }
    int experts() const { return experts_.count; }
    // Of the row's `place`-th expert.
    int entry(int row, int place) const { return entries_[at(row, place)]; }
    float weight(int row, int place) const { return weights_[at(row, place)]; }

private:
    size_t at(int row, int place) const { return static_cast<size_t>(row) * experts_.used + static_cast<size_t>(place); }

    Experts experts_;
    std::vector<int> chosen_;     // [rows][used]
    std::vector<float> weights_;  // [rows][used]
    std::vector<int> entries_;    // [rows][used]
    std::vector<int> rows_;       // [entries]
    std::vector<int> first_;      // [experts + 1]
};

}  // namespace tokenloom
