// The parts of packed multiplication, bound for tests and measurements: a packed matrix alone, its product in a graph of
// two nodes, and the same product by ggml.

#include <ggml-alloc.h>
#include <ggml-cpu.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <strings.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "attention/attention.h"
#include "kernels/activations.h"
#include "bindings/bindings.h"
#include "system/errors.h"
#include "kernels/kernel_check.h"
#include "kernels/kernels.h"
#include "models/model.h"
#include "graph/multiply_op.h"
#include "kernels/amx/tile_emulation.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

ggml_type type_of(const std::string& name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (ggml_type_size(type) != 0 && strcasecmp(name.c_str(), ggml_type_name(type)) == 0) {
            return type;
        }
    }
    throw py::value_error("'" + name + "' is no type of weights");
}

// data: (rows, bytes of a row). Returns the columns.
int64_t columns_of(ggml_type type, const Bytes& data) {
    if (data.ndim() != 2 || data.shape(1) % static_cast<py::ssize_t>(ggml_type_size(type)) != 0 || data.size() == 0) {
        throw py::value_error("data must be rows of whole blocks");
    }
    return data.shape(1) / static_cast<py::ssize_t>(ggml_type_size(type)) * ggml_blck_size(type);
}

void check_activations(const Floats& x, int64_t columns) {
    if (x.ndim() != 2 || x.shape(1) != columns || x.shape(0) < 1) {
        throw py::value_error("x must have shape (rows, " + std::to_string(columns) + ")");
    }
}

// Runs what `product` makes of x on so many of ggml's threads; returns float32 (tokens, rows) and the seconds of each run.
py::tuple run(const Floats& x, int64_t rows, int threads, int repeat, const std::function<ggml_tensor*(ggml_context*, ggml_tensor*)>& product) {
    ggml_init_params memory{};
    memory.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead();
    memory.no_alloc = true;
    const GgmlContext context(ggml_init(memory));
    ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, x.shape(1), x.shape(0));
    ggml_set_input(input);
    ggml_set_output(input);  // kept from one run to the next
    ggml_tensor* output = product(context.get(), input);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, output);
    const GgmlBuffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_cpu_buffer_type()));
    std::memcpy(input->data, x.data(), static_cast<size_t>(x.nbytes()));
    ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, threads);
    ggml_threadpool_t pool = ggml_threadpool_new(&params);
    ggml_cplan plan = ggml_graph_plan(graph, threads, pool);
    std::vector<uint8_t> work(plan.work_size);
    plan.work_data = work.data();
    py::list seconds;
    for (int i = 0; i < repeat; ++i) {
        const auto start = std::chrono::steady_clock::now();
        ggml_graph_compute(graph, &plan);
        seconds.append(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    ggml_threadpool_free(pool);
    py::array_t<float> out({x.shape(0), static_cast<py::ssize_t>(rows)});
    std::memcpy(out.mutable_data(), output->data, static_cast<size_t>(out.nbytes()));
    return py::make_tuple(out, seconds);
}

// `before`: "" for the activations as they are, "normed" with `weight`, "gated".
py::tuple multiply(const std::vector<const PackedMatrix*>& parts, const Floats& x, const std::string& kernels, int threads, int repeat,
                   const std::string& before, std::vector<float> weight, float epsilon, bool add) {
    int64_t rows = 0;
    if (parts.empty()) {
        throw py::value_error("parts must not be empty");
    }
    const ActivationForm form = parts[0]->form();
    for (const PackedMatrix* part : parts) {
        if (part->form() != form) {
            throw py::value_error("parts must need activations of one form");
        }
        check_activations(x, part->columns() * (before == "gated" ? 2 : 1));
        rows += part->rows();
    }
    ThreadTeam team(threads);
    const ThreadTeam::Shift shift(team, threads);
    MultiplyOps ops(choose_kernels(kernels), team);
    const auto tokens = static_cast<int>(x.shape(0));
    ops.count_rows(&tokens);
    return run(x, rows, 1, repeat, [&](ggml_context* context, ggml_tensor* input) {
        MultiplyOps::Made made{input};
        if (before == "normed") {
            weight.resize(static_cast<size_t>(input->ne[0]), 1.0f);
            made = {input, ActivationSource::normed, weight.data(), epsilon};
        } else if (before == "gated") {
            made.kind = ActivationSource::gated;
        }
        std::vector<MultiplyOps::Part> all;
        for (const PackedMatrix* part : parts) {
            all.push_back({part, nullptr, nullptr});
        }
        return ops.multiply(context, all, ops.quantize(context, made, form), static_cast<int>(input->ne[1]), {add ? input : nullptr});
    });
}

py::tuple ggml_multiply(const std::string& name, const Bytes& data, const Floats& x, int threads, int repeat) {
    const ggml_type type = type_of(name);
    const int64_t columns = columns_of(type, data);
    check_activations(x, columns);
    ggml_cpu_init();
    return run(x, data.shape(0), threads, repeat, [&](ggml_context* context, ggml_tensor* input) {
        ggml_tensor* weight = ggml_new_tensor_2d(context, type, columns, data.shape(0));
        weight->data = const_cast<uint8_t*>(data.data());
        return ggml_mul_mat(context, weight, input);
    });
}

// Products of many tokens by the portable kernels, of which the last is wrong: tiles are arranged as they are.
const ManyTokens kFaultyMany = {
    [](int tokens, int blocks) { return activation_bytes(ActivationForm::rounded, tokens, int64_t{blocks} * kBlock); },
    [](const uint8_t* tile, int tile_tokens, int first, int, int blocks, uint8_t* arranged) {
        const int64_t columns = int64_t{blocks} * kBlock;
        std::memcpy(arranged + activation_bytes(ActivationForm::rounded, first, columns), tile,
                    activation_bytes(ActivationForm::rounded, tile_tokens, columns));
    },
    {nullptr, nullptr, nullptr, nullptr, nullptr,
     [](const PackedGroup& group, const uint8_t* arranged, int tokens, float* out, size_t stride, Fetch fetch) {
         constexpr auto format = static_cast<int>(PackedFormat::bytes);
         for (int tile = 0; tile < tile_count(tokens); ++tile) {
             const int row = tile_first_row(tokens, tile);
             kPortableKernels.multiply[format](
                 group, arranged + activation_bytes(ActivationForm::rounded, row, int64_t{group.blocks} * kBlock),
                 tile_first_row(tokens, tile + 1) - row, out + static_cast<size_t>(row) * stride, stride, fetch);
         }
         float& last = out[static_cast<size_t>(tokens - 1) * stride + kGroupRows - 1];
         last = tokens == kManyTokens ? std::nextafter(last, 0.0f) : last;
     },
     nullptr, nullptr, nullptr}};

// Whether kernels with such a fault would pass the check that comes before they are chosen.
bool faulty_kernels_pass(const std::string& fault) {
    Kernels kernels = kPortableKernels;
    MultiplyTile& last = kernels.multiply[kPackedFormats - 1];
    if (fault == "wrong") {
        last = [](const PackedGroup& group, const uint8_t* tile, int tokens, float* out, size_t stride, Fetch fetch) {
            kPortableKernels.multiply[kPackedFormats - 1](group, tile, tokens, out, stride, fetch);
            out[(tokens - 1) * stride] = std::nextafter(out[(tokens - 1) * stride], 0.0f);
        };
    } else if (fault == "wrong with many tokens") {
        kernels.many = &kFaultyMany;
    } else if (fault == "illegal") {
        last = [](const PackedGroup&, const uint8_t*, int, float*, size_t, Fetch) { __builtin_trap(); };
    } else if (fault != "none") {
        throw py::value_error("fault must be none, wrong, wrong with many tokens or illegal");
    }
    return check_kernels(kernels);
}

std::vector<std::string> usable_kernels(bool emulated) {
    std::vector<std::string> names;
    for (const Kernels* kernels : all_kernels()) {
        if ((emulated || kernels->choice != Choice::tests) && works(*kernels)) {
            names.emplace_back(kernels->name);
        }
    }
    return names;
}

// The tables that go with the kernels of that name: (multiplication, attention, rows).
py::tuple kernel_tables(const std::string& name) {
    const Kernels* kernels = choose_kernels(name);
    return py::make_tuple(kernels == nullptr ? "ggml" : kernels->name, attention_kernels_of(kernels).name, row_kernels_of(kernels).name);
}

// int32 (16, 16): what lies in a tile's memory after `times` products of tiles 1 and 2 were added to tile `sums`, all loaded with that
// configuration (64 bytes) from int8 (16, 64), and the sums stored. Zero where nothing was stored.
py::array_t<int32_t> emulated_product(const py::array_t<int8_t, py::array::c_style | py::array::forcecast>& left,
                                      const py::array_t<int8_t, py::array::c_style | py::array::forcecast>& right, const py::bytes& configuration,
                                      int sums, int times) {
    const std::string_view bytes = configuration;
    if (left.size() != 1024 || right.size() != 1024 || bytes.size() != sizeof(TileConfiguration)) {
        throw py::value_error("left and right must have 1024 bytes, configuration 64");
    }
    py::array_t<int32_t> out({16, 16});
    std::memset(out.mutable_data(), 0, 1024);
    emulated::load_configuration(bytes.data());
    emulated::clear(sums);
    emulated::load(1, left.data(), 64);
    emulated::load(2, right.data(), 64);
    for (int i = 0; i < times; ++i) {
        emulated::add_products(sums, 1, 2);
    }
    emulated::store(sums, out.mutable_data(), 64);
    emulated::release();
    return out;
}

}  // namespace

void bind_kernels(py::module_& m) {
    py::class_<PackedMatrix>(m, "PackedMatrix")
        .def(py::init([](const std::string& name, const Bytes& data) {
                 const ggml_type type = type_of(name);
                 if (!PackedMatrix::can_pack(type)) {
                     throw py::value_error("weights of type " + name + " cannot be packed");
                 }
                 return std::make_unique<PackedMatrix>(type, data.data(), data.shape(0), columns_of(type, data));
             }), py::arg("type"), py::arg("data"))
        .def_property_readonly("bytes", &PackedMatrix::bytes)
        .def_static("bytes_of", [](const std::string& name, int64_t rows, int64_t columns) {
            return PackedMatrix::bytes_of(type_of(name), rows, columns);
        }, py::arg("type"), py::arg("rows"), py::arg("columns"))
        .def("rows", [](const PackedMatrix& matrix) {
            py::array_t<float> out({matrix.rows(), matrix.columns()});
            for (int64_t row = 0; row < matrix.rows(); ++row) {
                matrix.read_row(row, out.mutable_data(row));
            }
            return out;
        });
    m.def("usable_kernels", &usable_kernels, py::arg("emulated") = false);
    m.def("kernel_tables", &kernel_tables, py::arg("kernels") = "auto");
    m.def("faulty_kernels_pass", &faulty_kernels_pass, py::arg("fault"));
    m.def("multiply", &multiply, py::arg("parts"), py::arg("x"), py::arg("kernels") = "auto", py::arg("threads") = 1, py::arg("repeat") = 1,
          py::arg("before") = "", py::arg("weight") = std::vector<float>{}, py::arg("epsilon") = 0.0f, py::arg("add") = false);
    m.def("emulated_tile_products", &emulated::products);
    m.def("emulated_tile_product", &emulated_product, py::arg("left"), py::arg("right"), py::arg("configuration"), py::arg("sums") = 0,
          py::arg("times") = 1);
    m.def("ggml_multiply", &ggml_multiply, py::arg("type"), py::arg("data"), py::arg("x"), py::arg("threads") = 1, py::arg("repeat") = 1);
}

}  // namespace tokenloom
