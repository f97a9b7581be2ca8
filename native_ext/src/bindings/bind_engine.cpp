#include <pybind11/numpy.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "bindings/bindings.h"
#include "engine/engine.h"
#include "system/memory.h"
#include "bindings/python_sampling.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

[[noreturn]] void bad_entry(size_t index, const std::string& what) {
    throw BatchError("entry " + std::to_string(index) + " of the batch: " + what);
}

// An int of Python's (or what has __index__, as numpy's do), which must fit 32 bits.
int32_t small_int(py::handle value, size_t index, const char* field) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    int overflow = 0;
    const long long v = number ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : 0;
    if (!number) {
        PyErr_Clear();
    }
    if (!number || overflow != 0 || v != static_cast<int32_t>(v)) {
        bad_entry(index, std::string(field) + " is " + std::string(py::repr(value)).substr(0, 80) + ", not an integer of 32 bits");
    }
    return static_cast<int32_t>(v);
}

std::vector<Token> tokens_of(py::handle value, size_t index) {
    const auto fast = py::reinterpret_steal<py::object>(PySequence_Fast(value.ptr(), ""));
    if (!fast) {
        PyErr_Clear();
        bad_entry(index, "tokens is " + std::string(py::repr(value)).substr(0, 80) + ", not a sequence of token ids");
    }
    std::vector<Token> tokens;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
    tokens.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        tokens.push_back(small_int(PySequence_Fast_GET_ITEM(fast.ptr(), i), index, "a token"));
    }
    return tokens;
}

Rows rows_of(py::handle value, size_t index) {
    if (py::isinstance<py::str>(value)) {
        const auto name = value.cast<std::string>();
        if (name == "none") return Rows::none;
        if (name == "last") return Rows::last;
        if (name == "all") return Rows::all;
    }
    bad_entry(index, "logits is " + std::string(py::repr(value)).substr(0, 80) + "; it must be 'none', 'last' or 'all'");
}

// Reads engine.py's Entry objects.
std::vector<Entry> entries_of(const py::sequence& batch) {
    std::vector<Entry> entries;
    const size_t count = batch.size();
    entries.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const py::object item = batch[i];
        Entry& entry = entries.emplace_back();
        entry.sequence = small_int(item.attr("sequence"), i, "sequence");
        entry.tokens = tokens_of(item.attr("tokens"), i);
        const py::object sample = item.attr("sample");
        if (!sample.is_none()) {
            entry.sample = sampling_of(sample);
        }
        entry.logits = rows_of(item.attr("logits"), i);
    }
    return entries;
}

// A float32 array (rows, vocabulary) that owns the vector.
py::object array_of(std::vector<float>&& logits, py::ssize_t vocabulary) {
    auto owned = std::make_unique<std::vector<float>>(std::move(logits));
    const float* data = owned->data();
    const py::ssize_t rows = static_cast<py::ssize_t>(owned->size()) / vocabulary;
    const py::capsule owner(owned.release(), [](void* p) { delete static_cast<std::vector<float>*>(p); });
    return py::array_t<float>({rows, vocabulary}, data, owner);
}

// (token or None, logprobs or None, logits or None) per entry.
py::list forward(Engine& engine, const py::sequence& batch) {
    const std::vector<Entry> entries = entries_of(batch);
    std::vector<Output> outputs;
    {
        const py::gil_scoped_release release;
        outputs = engine.forward(entries);
    }
    py::list out(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
        Output& output = outputs[i];
        const bool sampled = output.sampled.has_value();
        out[i] = py::make_tuple(sampled ? py::object(py::int_(output.sampled->token)) : py::none(),
                                sampled ? logprobs_to_python(*output.sampled) : py::none(),
                                entries[i].logits == Rows::none ? py::none() : array_of(std::move(output.logits), engine.model().vocabulary()));
    }
    return out;
}

py::dict geometry(const Engine& engine) {
    const Description& h = engine.model().description();
    const LayerAttention& first = h.attention[0];
    py::dict out;
    out["architecture"] = h.architecture;
    out["name"] = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(h.name.data(), static_cast<Py_ssize_t>(h.name.size()), "replace"));
    out["layers"] = h.layers();
    out["heads"] = first.heads;
    out["kv_heads"] = first.kv_heads;
    out["head_size"] = first.key_size;
    out["embedding"] = h.embedding;
    out["vocabulary"] = engine.model().vocabulary();
    out["context"] = h.context;
    out["max_sequences"] = engine.cells().max_sequences();
    out["max_batch_tokens"] = engine.max_batch_tokens();
    out["page_size"] = kPageSize;
    out["page_bytes"] = engine.page_bytes();
    out["max_pages"] = engine.cells().max_pages();
    out["threads"] = engine.threads();
    return out;
}

py::dict stats(const Engine& engine) {
    const EngineCounters& c = engine.counters();
    const CellsCounters& cells = engine.cells().counters();
    py::dict out;
    out["forwards"] = c.forwards;
    out["tokens"] = c.tokens;
    out["seconds"] = c.seconds;
    out["pages_used"] = engine.cells().pages_used();
    out["pages_free"] = engine.cells().pages_free();
    out["sequences"] = engine.cells().sequence_count();
    py::dict extra;
    extra["sampling_seconds"] = c.sampling_seconds;
    extra["waiting_seconds"] = c.waiting_seconds;
    extra["forward_threads"] = static_cast<double>(c.threads);
    extra["kv_allocated_bytes"] = static_cast<double>(engine.pool().allocated_bytes());
    extra["packed_weight_bytes"] = static_cast<double>(engine.model().packed_bytes());
    extra["page_copies"] = static_cast<double>(cells.copies);
    extra["clones"] = static_cast<double>(cells.clones);
    extra["rewinds"] = static_cast<double>(cells.rewinds);
    extra["rollbacks"] = static_cast<double>(cells.rollbacks);
    extra["refusals"] = static_cast<double>(cells.refusals);
    out["extra"] = extra;
    return out;
}

// Who multiplies which weights: (kernels' name, matrices of theirs by type, matrices left to ggml by type).
py::tuple weights(const Engine& engine) {
    const auto counts = [](const std::map<std::string, int>& types) {
        py::dict out;
        for (const auto& [type, count] : types) {
            out[py::str(type)] = count;
        }
        return out;
    };
    const Kernels* kernels = engine.kernels();
    return py::make_tuple(kernels == nullptr ? "ggml" : kernels->name, counts(engine.model().packed_types()), counts(engine.model().unpacked_types()));
}

// Reports to a callable (done, total), at most ten times a second, and lets Python's handlers of signals run: either may
// raise, which ends the load. The callable must outlive what is returned.
Progress progress_of(py::handle callable) {
    using Clock = std::chrono::steady_clock;
    return [callable, last = Clock::time_point{}](uint64_t done, uint64_t total) mutable {
        const auto now = Clock::now();
        if (done < total && now - last < std::chrono::milliseconds(100)) {
            return;
        }
        last = now;
        const py::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set();
        }
        if (!callable.is_none()) {
            callable(done, total);
        }
    };
}

// Frees an engine in the process that loaded it. In one forked from that, its threads do not exist, and whatever they held is
// held for good: to wait for them would be to wait for ever. There it is left as it is, and costs nothing while untouched.
class InItsProcess {
public:
    void operator()(Engine* engine) const {
        if (::getpid() == loader_) {
            delete engine;
        }
    }

private:
    pid_t loader_ = ::getpid();
};
using HeldEngine = std::unique_ptr<Engine, InItsProcess>;

int64_t pages_needed(const Engine& engine, const py::dict& growth) {
    std::vector<std::pair<SequenceId, int64_t>> pairs;
    for (const auto& [sequence, tokens] : growth) {
        pairs.emplace_back(small_int(sequence, pairs.size(), "sequence"), small_int(tokens, pairs.size(), "the growth"));
    }
    return engine.cells().pages_needed(pairs);
}

}  // namespace

void bind_engine(py::module_& m) {
    py::class_<Engine, HeldEngine>(m, "Engine")
        .def(py::init([](std::string model, std::string kv_type, int64_t kv_bytes, int64_t threads, int64_t max_batch_tokens,
                         int64_t max_sequences, std::string packed_cache, std::string fingerprint, const py::object& progress,
                         int64_t fixed_threads, double patience) {
                 Packing packing{std::move(packed_cache), std::move(fingerprint), progress_of(progress), patience};
                 const py::gil_scoped_release release;
                 return HeldEngine(new Engine(EngineSettings{std::move(model), std::move(kv_type), kv_bytes, threads, max_batch_tokens,
                                                             max_sequences, std::move(packing), fixed_threads}));
             }),
             py::arg("model"), py::arg("kv_type"), py::arg("kv_bytes"), py::arg("threads"), py::arg("max_batch_tokens"), py::arg("max_sequences"),
             py::arg("packed_cache") = "", py::arg("fingerprint") = "", py::arg("progress") = py::none(), py::arg("fixed_threads") = 0,
             py::arg("patience") = Packing{}.patience)
        .def("geometry", &geometry)
        .def("metadata", [](const Engine& engine) { return metadata_dict(engine.model().file()); })
        .def("header_bytes", [](const Engine& engine) { return engine.model().file().data_offset(); })
        .def("stats", &stats)
        .def("weights", &weights)
        .def("packed_cache", [](const Engine& engine) {
            const PackedWeights& packed = engine.model().packed();
            const auto length = static_cast<Py_ssize_t>(packed.note.size());
            return py::make_tuple(packed.cache != nullptr, packed.failed,
                                  py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(packed.note.data(), length, "replace")));
        })
        .def("create", &Engine::create)
        .def("remove", &Engine::remove, py::arg("sequence"))
        .def("clone", &Engine::clone, py::arg("sequence"), py::arg("upto"))
        .def("rewind", &Engine::rewind, py::arg("sequence"), py::arg("to"))
        .def("length", [](const Engine& engine, SequenceId s) { return engine.cells().length(s); }, py::arg("sequence"))
        .def("pages", [](const Engine& engine, SequenceId s) {
                const auto pages = engine.cells().pages(s);
                py::list out;
                for (const Page page : pages) {
                    out.append(page);
                }
                return out;
            }, py::arg("sequence"))
        .def("pages_needed", &pages_needed, py::arg("growth"))
        .def("pages_held", [](const Engine& engine, SequenceId s) { return engine.cells().pages_held(s); }, py::arg("sequence"))
        .def("force_odd_rows", [](Engine& engine) { engine.forward_graph().force_odd_rows(); })
        .def("forward", &forward, py::arg("batch"));
    m.def("available_memory", [](const std::string& root) -> py::object {
        const auto bytes = available_memory(root);
        return bytes ? py::object(py::int_(*bytes)) : py::none();
    }, py::arg("root") = "");
}

}  // namespace tokenloom
