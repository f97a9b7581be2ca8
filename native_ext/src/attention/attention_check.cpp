#include "attention/attention_check.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "system/child_check.h"

namespace tokenloom {

namespace {

constexpr int kPages = kSpanPages + 1;                // two spans
constexpr int kLast = kSpanPages * kPageSize + 21;    // the position of a row that sees a part of the last page
constexpr int kFirstRows = 2 * kPageSize + 3;         // of a prompt
constexpr int kHeads[] = {1, 2, 3, 4, 5, 6, 7, 13};   // that share a KV head: queries of one row
constexpr int kHeadSizes[] = {64, 24};
constexpr int kWindow = kPageSize + 9;
constexpr float kCap = 5.0f;
constexpr Page kOrder[kPages] = {3, 0, 4, 1, 2};

// Cells of kPages pages for one layer and KV head.
void fill(KvPool& pool, int head_size, CheckNumbers& numbers) {
    pool.ensure(kPages);
    std::vector<float> key(static_cast<size_t>(head_size));
    std::vector<float> value(key.size());
    for (int cell = 0; cell < kPages * kPageSize; ++cell) {
        for (size_t d = 0; d < key.size(); ++d) {
            key[d] = numbers.real();
            value[d] = numbers.real();
        }
        pool.write(kPortableRows, cell / kPageSize, cell % kPageSize, 0, 0, key.data(), value.data());
    }
}

// One batch of one shape, with all the memory that it needs.
class Case {
public:
    Case(const KvPool& pool, const AttentionShape& shape, float cap, bool prompt, CheckNumbers& numbers)
        : shape_(shape),
          cap_(cap),
          pool_(pool),
          runs_{prompt ? Run{0, kFirstRows, 0, kOrder} : Run{0, 1, kLast, kOrder}},
          plan_(plan_attention(runs_, shape_, 1)),
          scratch_({&shape_, 1}),
          stored_(plan_.stored_floats),
          query_(static_cast<size_t>(runs_[0].rows) * shape.heads * shape.key_size),
          expected_(static_cast<size_t>(runs_[0].rows) * shape.heads * shape.value_size),
          got_(expected_.size()) {
        for (float& number : query_) {
            number = 8 * numbers.real();
        }
    }

    bool same_bits(const AttentionKernels& kernels) {
        run(kPortableAttention, expected_);
        run(kernels, got_);
        return std::memcmp(expected_.data(), got_.data(), got_.size() * sizeof(float)) == 0;
    }

private:
    void run(const AttentionKernels& kernels, std::vector<float>& output) {
        const size_t stride = static_cast<size_t>(shape_.heads) * shape_.key_size;
        const HeadTurn none;
        const AttentionWork work{kernels, shape_, plan_, runs_, pool_, 0, query_.data(), stride, none, nullptr, cap_,
                                 std::sqrt(static_cast<float>(shape_.key_size)), output.data(), stored_.data()};
        for (const AttentionPlan::Item& item : plan_.items) {
            attend(work, item, 0, scratch_);
        }
    }

    AttentionShape shape_;
    float cap_;
    const KvPool& pool_;
    std::vector<Run> runs_;
    AttentionPlan plan_;
    AttentionScratch scratch_;
    std::vector<float> stored_;
    std::vector<float> query_;
    std::vector<float> expected_;
    std::vector<float> got_;
};

// Taken before the child begins.
struct Check {
    const AttentionKernels& kernels;
    std::deque<KvPool> pools;
    std::deque<Case> cases;

    explicit Check(const AttentionKernels& checked) : kernels(checked) {
        CheckNumbers numbers;
        for (int type = 0; type < kKvTypes; ++type) {
            for (const int head_size : kHeadSizes) {
                const CellShape cells{1, head_size, head_size};
                KvPool& pool = pools.emplace_back(std::span(&cells, 1), static_cast<KvType>(type));
                fill(pool, head_size, numbers);
                const auto shape = [&](int heads, int window) { return AttentionShape{heads, 1, head_size, head_size, window}; };
                for (const int heads : kHeads) {
                    cases.emplace_back(pool, shape(heads, 0), 0.0f, false, numbers);
                }
                cases.emplace_back(pool, shape(1, 0), 0.0f, true, numbers);
                cases.emplace_back(pool, shape(3, kWindow), kCap, false, numbers);
                cases.emplace_back(pool, shape(1, kWindow), kCap, true, numbers);
            }
        }
    }

    bool same_bits() {
        for (Case& one : cases) {
            if (!one.same_bits(kernels)) {
                return false;
            }
        }
        return true;
    }
};

}  // namespace

bool check_attention(const AttentionKernels& kernels) {
    const auto check = std::make_unique<Check>(kernels);
    return holds_in_child([](void* context) { return static_cast<Check*>(context)->same_bits(); }, check.get());
}

bool works(const AttentionKernels& kernels) {
    return found_once<AttentionKernels>(
        kernels, [](const AttentionKernels& k) { return k.usable() && (&k == &kPortableAttention || check_attention(k)); });
}

}  // namespace tokenloom
