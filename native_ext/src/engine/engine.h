// The engine: a model, its cells, and the forward over both.
//
// engine.py in the package tells the contract (class Engine); this class keeps it. Above all forward() is atomic: entries
// are checked and their cells reserved before any work, and whatever fails later (memory, a row of logits that is not
// numbers) destroys the reservation, which leaves every sequence and every page as it was.
// One thread at a time. Nothing here knows of Python.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cells.h"
#include "graph/forward.h"
#include "cache/kv_pool.h"
#include "models/model.h"
#include "sampling/sampler.h"
#include "system/thread_choice.h"
#include "system/thread_team.h"

namespace tokenloom {

struct EngineSettings {
    std::string model;
    std::string kv_type = "f16";   // or int8 (kv_pool.h)
    int64_t kv_bytes = int64_t{1} << 30;
    int64_t threads = 0;           // 0: every core this process may use; more than that are not taken
    int64_t max_batch_tokens = 512;
    int64_t max_sequences = 1024;
    Packing packing;
    int64_t fixed_threads = 0;  // for tests: exactly so many, whatever the cores and the clock say; 0: as above
};

enum class Rows { none, last, all };

struct Entry {
    SequenceId sequence;
    std::vector<Token> tokens;
    std::optional<Sampling> sample;
    Rows logits = Rows::none;
};

struct Output {
    std::optional<Sampled> sampled;
    std::vector<float> logits;  // [rows asked for][vocabulary]
};

struct EngineCounters {
    int64_t forwards = 0;
    int64_t tokens = 0;
    double seconds = 0.0;          // within forward()
    double sampling_seconds = 0.0; // of these, in the sampler
    double waiting_seconds = 0.0;  // of these, the first thread's for others
    int64_t threads = 0;           // that did the forwards, added up
};

// Of the layers that have cells.
std::vector<CellShape> cell_shapes(const Description& model);

class Engine {
public:
    // Throws ModelError, or EngineError for settings out of range, a kv_bytes that holds no page, or a TOKENLOOM_KERNELS
    // (kernels.h) that this machine has not.
    explicit Engine(const EngineSettings& settings);

    std::vector<Output> forward(std::span<const Entry> batch);

    SequenceId create() { return cells_.create(); }
    SequenceId clone(SequenceId sequence, int64_t upto) { return cells_.clone(sequence, upto); }
    void remove(SequenceId sequence);
    void rewind(SequenceId sequence, int64_t to);

    const Kernels* kernels() const { return kernels_; }
    const Model& model() const { return model_; }
    const Cells& cells() const { return cells_; }
    const KvPool& pool() const { return pool_; }
    const EngineCounters& counters() const { return counters_; }
    Forward& forward_graph() { return forward_; }
    int threads() const { return team_.threads(); }
    int max_batch_tokens() const { return max_batch_tokens_; }
    int64_t page_bytes() const { return page_bytes_; }

private:
    void check(std::span<const Entry> batch) const;
    FlatBatch flatten(std::span<const Entry> batch, const Reservation& reservation) const;
    std::vector<Output> sample(std::span<const Entry> batch, const FlatBatch& flat, std::span<const float> logits);

    const Kernels* kernels_;  // null: ggml's own multiplication
    Model model_;
    ThreadTeam team_;
    bool fixed_threads_;
    ThreadChoice choice_;
    int max_batch_tokens_;
    int64_t page_bytes_;
    Cells cells_;
    KvPool pool_;
    Forward forward_;
    std::vector<Sampler> samplers_;  // one for each thread
    EngineCounters counters_;
};

}  // namespace tokenloom
