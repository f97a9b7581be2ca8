// Attention over pages, bound for tests and measurements: one layer's, of arrays, with any kernels and any pages.

#include <ggml-cpu.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_check.h"
#include "bindings/bindings.h"
#include "models/model.h"
#include "attention/rope.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
// (rows, first position, pages): see Run. The first run's first row is 0, the next one's follows its last.
using PythonRun = std::tuple<int, int, std::vector<Page>>;

const AttentionKernels& kernels_named(const std::string& name) {
    for (const AttentionKernels* kernels : all_attention_kernels()) {
        if (works(*kernels) && name == kernels->name) {
            return *kernels;
        }
    }
    throw py::value_error("there are no attention kernels '" + name + "' here");
}

KvType type_named(const std::string& name) {
    const auto* found = std::find(std::begin(kKvTypeNames), std::end(kKvTypeNames), name);
    if (found == std::end(kKvTypeNames)) {
        throw py::value_error("there are no cells of type '" + name + "'");
    }
    return static_cast<KvType>(found - std::begin(kKvTypeNames));
}

std::vector<Run> runs_of(const std::vector<PythonRun>& given, int pages) {
    std::vector<Run> runs;
    int row = 0;
    for (const auto& [rows, first_position, list] : given) {
        if (rows < 1 || first_position < 0 || static_cast<size_t>((first_position + rows - 1) / kPageSize) >= list.size()) {
            throw py::value_error("a run has no rows, or fewer pages than its positions need");
        }
        for (const Page page : list) {
            if (page < 0 || page >= pages) {
                throw py::value_error("a run names page " + std::to_string(page) + " of " + std::to_string(pages));
            }
        }
        runs.push_back({row, rows, first_position, list});
        row += rows;
    }
    return runs;
}

AttentionShape shape_of(int heads, int kv_heads, int key_size, int value_size, int window) {
    if (kv_heads < 1 || heads < kv_heads || heads % kv_heads != 0 || key_size < 1 || value_size < 1 || window < 0) {
        throw py::value_error("heads must be a multiple of kv_heads");
    }
    return {heads, kv_heads, key_size, value_size, window};
}

double cpu_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// query: (rows, heads, key size); keys, values: (pages, kPageSize, kv_heads, key size or value size). Positions whose key is
// infinite are left unwritten. Planned for so many threads, but run on one. Returns the outputs, (rows, heads, value size), and the
// CPU seconds of each repetition.
py::tuple attend_runs(const Floats& query, const Floats& keys, const Floats& values, const std::vector<PythonRun>& given,
                      const std::string& kernels, const std::string& type, int threads, int repeat, int window, float cap,
                      const std::vector<float>& sinks) {
    if (query.ndim() != 3 || keys.ndim() != 4 || values.ndim() != 4 || keys.shape(1) != kPageSize || keys.shape(3) != query.shape(2) ||
        !std::equal(keys.shape(), keys.shape() + 3, values.shape()) || threads < 1 ||
        (!sinks.empty() && sinks.size() != static_cast<size_t>(query.shape(1)))) {
        throw py::value_error("query must be (rows, heads, key size), keys and values (pages, 64, kv_heads, key and value size)");
    }
    const auto pages = static_cast<int>(keys.shape(0));
    const AttentionShape shape =
        shape_of(static_cast<int>(query.shape(1)), static_cast<int>(keys.shape(2)), static_cast<int>(query.shape(2)),
                 static_cast<int>(values.shape(3)), window);
    const std::vector<Run> runs = runs_of(given, pages);
    if (runs.empty() || runs.back().first_row + runs.back().rows != query.shape(0)) {
        throw py::value_error("the runs' rows must be those of the query");
    }
    const CellShape cells{shape.kv_heads, shape.key_size, shape.value_size};
    KvPool pool({&cells, 1}, type_named(type));
    pool.ensure(pages);
    for (int page = 0; page < pages; ++page) {
        for (int offset = 0; offset < kPageSize; ++offset) {
            for (int head = 0; head < shape.kv_heads; ++head) {
                const float* key = keys.data(page, offset, head, 0);
                if (key[0] - key[0] == 0.0f || key[0] != key[0]) {
                    pool.write(kPortableRows, page, offset, 0, head, key, values.data(page, offset, head, 0));
                }
            }
        }
    }
    const AttentionPlan plan = plan_attention(runs, shape, threads);
    std::vector<float> stored(plan.stored_floats);
    AttentionScratch scratch({&shape, 1});
    Floats output({query.shape(0), query.shape(1), values.shape(3)});
    const HeadTurn none;
    const AttentionWork work{kernels_named(kernels), shape, plan, runs, pool, 0, query.data(),
                             static_cast<size_t>(shape.heads) * shape.key_size, none, sinks.empty() ? nullptr : sinks.data(), cap,
                             std::sqrt(static_cast<float>(shape.key_size)), output.mutable_data(), stored.data()};
    py::list seconds;
    for (int i = 0; i < repeat; ++i) {
        const double start = cpu_seconds();
        const int items = static_cast<int>(plan.items.size()) * shape.kv_heads;
        const auto item = [&](int at) -> const AttentionPlan::Item& { return plan.items[static_cast<size_t>(at / shape.kv_heads)]; };
        for (int at = 0; at < items; ++at) {
            const int next = at + 1;
            const Ahead after = next < items ? first_keys(work, item(next), next % shape.kv_heads) : Ahead{};
            attend(work, item(at), at % shape.kv_heads, scratch, after);
        }
        for (int head = 0; head < shape.kv_heads; ++head) {
            for (const AttentionPlan::Tile& tile : plan.tiles) {
                if (tile.pieces > 1) {
                    gather(work, tile, head);
                }
            }
        }
        seconds.append(cpu_seconds() - start);
    }
    return py::make_tuple(output, seconds);
}

// (index, page, rows that read it) for every time that a page is read for one KV head, and the number of work items.
py::tuple reads_of(const std::vector<PythonRun>& given, int heads, int kv_heads, int head_size, int threads, int window) {
    const std::vector<Run> runs = runs_of(given, 1 << 30);
    const AttentionPlan plan = plan_attention(runs, shape_of(heads, kv_heads, head_size, head_size, window), threads);
    py::list reads;
    for (const AttentionPlan::Item& item : plan.items) {
        const AttentionPlan::Tile& tile = plan.tiles[static_cast<size_t>(item.tile)];
        for (int page = item.first_span * kSpanPages; page < item.last_span * kSpanPages; ++page) {
            for_each_page(plan, tile, runs, page, [&](Page number, int first, int count) {
                py::list rows;
                for (int i = first; i < first + count; ++i) {
                    rows.append(plan.rows[static_cast<size_t>(tile.first_row + i)].row);
                }
                reads.append(py::make_tuple(page, number, rows));
            });
        }
    }
    return py::make_tuple(reads, plan.items.size() * kv_heads, plan.stored_floats);
}

// x: (rows, heads, head_size), turned by each row's position, by us and by ggml.
py::tuple rope(const Floats& x, std::vector<int> positions, int dimensions, int original_context, float freq_base, float freq_scale,
               float ext_factor, float attn_factor, std::vector<float> factors, bool halves) {
    if (x.ndim() != 3 || static_cast<size_t>(x.shape(0)) != positions.size() || dimensions < 2 || dimensions % 2 != 0 ||
        dimensions > x.shape(2) || (!factors.empty() && factors.size() != static_cast<size_t>(dimensions / 2))) {
        throw py::value_error("x must be (positions, heads, head_size), dimensions even and at most head_size");
    }
    RopeParams params;
    params.dimensions = dimensions;
    params.original_context = original_context;
    params.freq_base = freq_base;
    params.freq_scale = freq_scale;
    params.ext_factor = ext_factor;
    params.attn_factor = attn_factor;
    const RopeOrder order = halves ? RopeOrder::halves : RopeOrder::neighbours;
    const Rope ours(params, factors.empty() ? nullptr : factors.data());
    const auto size = static_cast<int>(x.shape(2));
    Floats out({x.shape(0), x.shape(1), x.shape(2)});
    std::vector<float> angles(static_cast<size_t>(ours.angle_floats()));
    for (py::ssize_t row = 0; row < x.shape(0); ++row) {
        ours.angles(positions[static_cast<size_t>(row)], angles.data());
        for (py::ssize_t head = 0; head < x.shape(1); ++head) {
            Rope::turn(x.data(row, head, 0), size, angles.data(), dimensions, order, 1.0f, out.mutable_data(row, head, 0));
        }
    }

    ggml_cpu_init();
    ggml_init_params memory{};
    memory.mem_size = static_cast<size_t>(x.nbytes()) * 2 + 16 * ggml_tensor_overhead() + ggml_graph_overhead() + (1 << 20);
    const GgmlContext context(ggml_init(memory));
    ggml_tensor* input = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, size, x.shape(1), x.shape(0));
    std::memcpy(input->data, x.data(), static_cast<size_t>(x.nbytes()));
    ggml_tensor* at = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, x.shape(0));
    std::memcpy(at->data, positions.data(), positions.size() * sizeof(int));
    ggml_tensor* divisors = nullptr;
    if (!factors.empty()) {
        divisors = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, dimensions / 2);
        std::memcpy(divisors->data, factors.data(), factors.size() * sizeof(float));
    }
    ggml_tensor* turned = ggml_rope_ext(context.get(), input, at, divisors, dimensions, halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL, original_context, freq_base,
                                        freq_scale, ext_factor, attn_factor, 32.0f, 1.0f);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, turned);
    ggml_graph_compute_with_ctx(context.get(), graph, 1);
    Floats theirs({x.shape(0), x.shape(1), x.shape(2)});
    std::memcpy(theirs.mutable_data(), turned->data, static_cast<size_t>(x.nbytes()));
    return py::make_tuple(out, theirs);
}

template <int type>
void nearly(const PageTask& task) {
    kPortableAttention.attend_page[type](task);
    float& last = task.output[static_cast<size_t>(task.queries - 1) * task.padded];
    last = std::nextafter(last, 2 * last);
}

// The name of what is chosen where kernels called "faulty" are the fastest, which have that fault with the last type of cells.
std::string chosen_attention(const std::string& fault) {
    constexpr int last = kKvTypes - 1;
    // For good, since what works is remembered.
    auto* faulty = new AttentionKernels(kPortableAttention);
    faulty->name = "faulty";
    if (fault == "wrong") {
        faulty->attend_page[last] = nearly<last>;
    } else if (fault == "illegal") {
        faulty->attend_page[last] = [](const PageTask&) { __builtin_trap(); };
    } else if (fault == "unusable") {
        faulty->usable = [] { return false; };
    } else if (fault != "none") {
        throw py::value_error("fault must be none, wrong, illegal or unusable");
    }
    const AttentionKernels* const candidates[] = {&kPortableAttention, faulty};
    return attention_kernels_of(nullptr, candidates).name;
}

}  // namespace

void bind_attention(py::module_& m) {
    m.def("attention_kernels", [] {
        std::vector<std::string> names;
        for (const AttentionKernels* kernels : all_attention_kernels()) {
            if (works(*kernels)) {
                names.emplace_back(kernels->name);
            }
        }
        return names;
    });
    m.def("chosen_attention", &chosen_attention, py::arg("fault"));
    m.def("attend", &attend_runs, py::arg("query"), py::arg("keys"), py::arg("values"), py::arg("runs"), py::arg("kernels") = "portable",
          py::arg("type") = "f16", py::arg("threads") = 1, py::arg("repeat") = 1, py::arg("window") = 0, py::arg("cap") = 0.0f,
          py::arg("sinks") = std::vector<float>{});
    m.def("rope", &rope, py::arg("x"), py::arg("positions"), py::arg("dimensions"), py::arg("original_context") = 2048,
          py::arg("freq_base") = 10000.0f, py::arg("freq_scale") = 1.0f, py::arg("ext_factor") = 0.0f, py::arg("attn_factor") = 1.0f,
          py::arg("factors") = std::vector<float>{}, py::arg("halves") = false);
    m.def("attention_reads", &reads_of, py::arg("runs"), py::arg("heads"), py::arg("kv_heads"), py::arg("head_size"), py::arg("threads"),
          py::arg("window") = 0);
}

}  // namespace tokenloom
