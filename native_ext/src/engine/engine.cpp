#include "engine/engine.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "kernels/activations.h"
#include "system/cpu_count.h"
#include "system/errors.h"

namespace tokenloom {

static_assert(Cells::default_page_size == kPageSize);

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of CPU, since it was made.
class CpuSeconds {
public:
    double of_process() const { return now(CLOCK_PROCESS_CPUTIME_ID) - process_; }
    double of_thread() const { return now(CLOCK_THREAD_CPUTIME_ID) - thread_; }

private:
    static double now(clockid_t clock) {
        timespec time{};
        clock_gettime(clock, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }

    double process_ = now(CLOCK_PROCESS_CPUTIME_ID);
    double thread_ = now(CLOCK_THREAD_CPUTIME_ID);
};

int in_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        throw EngineError(std::string(name) + " is " + std::to_string(value) + "; it must be from " + std::to_string(least) + " to " +
                          std::to_string(most));
    }
    return static_cast<int>(value);
}

int thread_count(int64_t asked) {
    const int usable = std::min(usable_cores(), GGML_MAX_N_THREADS);
    const int threads = in_range("threads", asked, 0, 1 << 20);
    return threads == 0 ? usable : std::min(threads, usable);
}

KvType kv_type_of(const std::string& name) {
    for (int i = 0; i < kKvTypes; ++i) {
        if (name == kKvTypeNames[i]) {
            return static_cast<KvType>(i);
        }
    }
    throw EngineError("kv_type is '" + name.substr(0, 80) + "'; it must be f16 or int8");
}

int page_count(int64_t kv_bytes, int64_t page_bytes) {
    if (kv_bytes < page_bytes) {
        throw EngineError("kv_bytes is " + std::to_string(kv_bytes) + "; this model needs at least " + std::to_string(page_bytes) +
                          ", one page of " + std::to_string(kPageSize) + " tokens");
    }
    return static_cast<int>(std::min<int64_t>(kv_bytes / page_bytes, int64_t{1} << 30));
}

// Of logits, asked for by an entry.
size_t logits_rows(const Entry& entry) {
    return entry.logits == Rows::all ? entry.tokens.size() : (entry.logits == Rows::last || entry.sample ? 1 : 0);
}

}  // namespace

std::vector<CellShape> cell_shapes(const Description& model) {
    std::vector<CellShape> shapes;
    for (int i = 0; i < model.layers(); ++i) {
        const LayerAttention& layer = model.attention[static_cast<size_t>(i)];
        if (layer.cells == i) {
            shapes.push_back({layer.kv_heads, layer.key_size, layer.value_size});
        }
    }
    return shapes;
}

Engine::Engine(const EngineSettings& settings)
    : kernels_(kernels_of_environment()),
      model_(settings.model, kernels_ != nullptr, settings.packing),
      team_(settings.fixed_threads > 0 ? in_range("fixed_threads", settings.fixed_threads, 1, 64) : thread_count(settings.threads)),
      fixed_threads_(settings.fixed_threads > 0),
      choice_(team_.threads()),
      max_batch_tokens_(in_range("max_batch_tokens", settings.max_batch_tokens, 1, 1 << 20)),
      page_bytes_(static_cast<int64_t>(KvPool::page_bytes(cell_shapes(model_.description()), kv_type_of(settings.kv_type)))),
      cells_(page_count(settings.kv_bytes, page_bytes_), in_range("max_sequences", settings.max_sequences, 1, 1 << 24),
             model_.description().context, kPageSize),
      pool_(cell_shapes(model_.description()), kv_type_of(settings.kv_type)),
      forward_(model_, pool_, kernels_, team_),
      samplers_(static_cast<size_t>(team_.threads()), Sampler(row_kernels_of(kernels_))) {}

void Engine::remove(SequenceId sequence) {
    cells_.remove(sequence);
    pool_.trim(cells_.pages_end());
}

void Engine::rewind(SequenceId sequence, int64_t to) {
    cells_.rewind(sequence, to);
    pool_.trim(cells_.pages_end());
}

void Engine::check(std::span<const Entry> batch) const {
    size_t rows = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
        const Entry& entry = batch[i];
        const std::string where = "entry " + std::to_string(i) + " of the batch: ";
        if (!cells_.exists(entry.sequence)) {
            throw BatchError(where + "sequence " + std::to_string(entry.sequence) + " does not exist");
        }
        if (entry.tokens.empty()) {
            throw BatchError(where + "tokens is empty; at least one is needed");
        }
        for (const Token token : entry.tokens) {
            if (token < 0 || token >= model_.vocabulary()) {
                throw BatchError(where + "token " + std::to_string(token) + " is outside the vocabulary; it must be from 0 to " +
                                 std::to_string(model_.vocabulary() - 1));
            }
        }
        if (entry.sample) {
            validate(*entry.sample, model_.vocabulary());
        }
        rows += entry.tokens.size();
    }
    if (rows > static_cast<size_t>(max_batch_tokens_)) {
        throw BatchError("the batch has " + std::to_string(rows) + " tokens; max_batch_tokens is " + std::to_string(max_batch_tokens_));
    }
}

FlatBatch Engine::flatten(std::span<const Entry> batch, const Reservation& reservation) const {
    FlatBatch flat;
    flat.slots = reservation.slots();
    for (const Entry& entry : batch) {
        const int first = flat.rows();
        const int count = static_cast<int>(entry.tokens.size());
        flat.tokens.insert(flat.tokens.end(), entry.tokens.begin(), entry.tokens.end());
        flat.runs.push_back({first, count, flat.slots[first].position, cells_.pages(entry.sequence)});
        if (entry.logits == Rows::all) {
            for (int row = first; row < first + count; ++row) {
                flat.outputs.push_back(row);
            }
        } else if (entry.logits == Rows::last || entry.sample) {
            flat.outputs.push_back(first + count - 1);
        }
    }
    return flat;
}

std::vector<Output> Engine::forward(std::span<const Entry> batch) {
    if (batch.empty()) {
        return {};
    }
    const auto start = Clock::now();
    check(batch);
    std::vector<Append> appends;
    appends.reserve(batch.size());
    for (const Entry& entry : batch) {
        appends.push_back({entry.sequence, entry.tokens});
    }

    Reservation reservation = cells_.reserve(appends);
    pool_.ensure(reservation.pages_end());
    for (const PageCopy& copy : reservation.copies()) {
        pool_.copy(copy.from, copy.to, copy.positions);
    }
    const FlatBatch flat = flatten(batch, reservation);
    const int threads = fixed_threads_ ? team_.threads() : choice_.choose(flat.rows());
    const CpuSeconds cpu;
    const ThreadTeam::Shift shift(team_, threads);
    const std::span<const float> logits = forward_.run(flat, threads);

    const auto sampling_start = Clock::now();
    std::vector<Output> outputs = sample(batch, flat, logits);
    counters_.sampling_seconds += seconds_since(sampling_start);

    reservation.commit();
    counters_.forwards += 1;
    counters_.tokens += flat.rows();
    const double seconds = seconds_since(start);
    counters_.seconds += seconds;
    counters_.waiting_seconds += shift.waited();
    counters_.threads += threads;
    // ggml's threads work or spin all the time, if they have their cores.
    const double lost = forward_.ggml_multiplies() ? seconds - cpu.of_process() / threads
                                                   : std::max(shift.waited(), seconds - cpu.of_thread());
    choice_.report(flat.rows(), threads, seconds, lost);
    return outputs;
}

std::vector<Output> Engine::sample(std::span<const Entry> batch, const FlatBatch& flat, std::span<const float> logits) {
    const size_t vocabulary = model_.vocabulary();
    std::vector<size_t> first_rows;  // of the logits
    size_t row = 0;
    for (const Entry& entry : batch) {
        first_rows.push_back(row);
        row += logits_rows(entry);
    }
    std::vector<Output> outputs(batch.size());
    std::vector<std::exception_ptr> failures(batch.size());
    team_.run(static_cast<int>(batch.size()), [&](int first, int last, int thread) {
        for (int i = first; i < last; ++i) {
            try {
                const Entry& entry = batch[i];
                const std::span<const float> own = logits.subspan(first_rows[i] * vocabulary, logits_rows(entry) * vocabulary);
                if (entry.logits != Rows::none) {
                    outputs[i].logits.assign(own.begin(), own.end());
                }
                if (entry.sample) {
                    // The entry's own end, which is not the sequence's when a later entry abuts.
                    const Run& run = flat.runs[i];
                    const size_t position = static_cast<size_t>(run.first_position) + run.rows;
                    outputs[i].sampled = samplers_[thread].sample(own.last(vocabulary), cells_.tokens(entry.sequence).first(position), position,
                                                                  *entry.sample);
                }
            } catch (...) {
                failures[i] = std::current_exception();
            }
        }
    });
    for (const std::exception_ptr& failure : failures) {
        if (failure) {
            std::rethrow_exception(failure);
        }
    }
    return outputs;
}

}  // namespace tokenloom
