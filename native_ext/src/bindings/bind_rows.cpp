// The small work on rows (row_kernels.h), bound for tests and measurements.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "bindings/bindings.h"
#include "cache/kv_pool.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

const RowKernels& kernels_named(const std::string& name) {
    for (const RowKernels* kernels : all_row_kernels()) {
        if (kernels->usable() && name == kernels->name) {
            return *kernels;
        }
    }
    throw py::value_error("there are no row kernels '" + name + "' here");
}

ActivationForm form_named(const std::string& name) {
    if (name == "rounded") {
        return ActivationForm::rounded;
    }
    return name == "whole" ? ActivationForm::whole : ActivationForm::shortened;
}

double cpu_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr const char* kKindNames[] = {"",          "normed", "layer_normed", "gated",        "gelu_gated", "erf_gated", "clamped_gated",
                                      "silu", "gelu",   "erf_gelu",     "relu_squared", "xielu"};
static_assert(std::size(kKindNames) == kActivationKinds);

ActivationSource::Kind kind_named(const std::string& name) {
    const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), name);
    if (found == std::end(kKindNames)) {
        throw py::value_error("there are no activations '" + name + "'");
    }
    return static_cast<ActivationSource::Kind>(found - std::begin(kKindNames));
}

// The bytes of all tiles, each written in `parts` parts, and the seconds of CPU of each time. `before`: one of kKindNames; weights
// and biases as ActivationSource has them.
py::tuple tiles(const Floats& x, const std::string& kernels, const std::string& form_name, const std::string& before,
                const std::vector<float>& weight, float epsilon, int parts, int repeat, const std::vector<float>& bias) {
    const ActivationSource::Kind kind = kind_named(before);
    const bool gated = is_gated(kind);
    const bool normed = kind == ActivationSource::normed || kind == ActivationSource::layer_normed;
    const ActivationForm form = form_named(form_name);
    if (x.ndim() != 2 || x.shape(0) < 1 || parts < 1 || (gated && x.shape(1) % 2 != 0)) {
        throw py::value_error("x must have shape (rows, columns), and twice the columns to be gated");
    }
    const py::ssize_t columns = gated ? x.shape(1) / 2 : x.shape(1);
    if ((form == ActivationForm::rounded && columns % kBlock != 0) || (normed && weight.size() != static_cast<size_t>(columns)) ||
        (kind == ActivationSource::xielu && weight.size() != 4) || (!bias.empty() && bias.size() != static_cast<size_t>(columns))) {
        throw py::value_error("columns must be a multiple of 32 where they are rounded, and as many as weights");
    }
    const RowKernels& chosen = kernels_named(kernels);
    const ActivationSource source{kind,          x.data(), static_cast<size_t>(x.shape(1)),       columns,
                                  weight.data(), epsilon,  bias.empty() ? nullptr : bias.data()};
    const auto rows = static_cast<int>(x.shape(0));
    py::array_t<uint8_t> out(static_cast<py::ssize_t>(activation_bytes(form, rows, columns)));
    std::memset(out.mutable_data(), 0xee, static_cast<size_t>(out.nbytes()));
    py::list seconds;
    for (int i = 0; i < repeat; ++i) {
        const double start = cpu_seconds();
        for (int tile = 0; tile < tile_count(rows); ++tile) {
            for (int part = parts - 1; part >= 0; --part) {  // the last first: none may write beyond its own
                const auto cut = [&](int p) { return p == parts ? columns : columns / kBlock * p / parts * kBlock; };
                write_tile(chosen, source, form, rows, tile, cut(part), cut(part + 1), out.mutable_data());
            }
        }
        seconds.append(cpu_seconds() - start);
    }
    return py::make_tuple(out, seconds);
}

// int8 (rows, columns), and float32 scale, float32 scale * sum, int32 -8 * sum, int32 -128 * sum (rows, blocks).
py::tuple quantize(const Floats& x) {
    if (x.ndim() != 2 || x.shape(0) < 1 || x.shape(1) % kBlock != 0) {
        throw py::value_error("x must have shape (rows, columns), columns a multiple of 32");
    }
    const auto rows = static_cast<int>(x.shape(0));
    const py::ssize_t blocks = x.shape(1) / kBlock;
    std::vector<uint8_t> tiles(activation_bytes(ActivationForm::rounded, rows, x.shape(1)));
    write_tiles(row_kernels_of(nullptr), {ActivationSource::plain, x.data(), static_cast<size_t>(x.shape(1)), x.shape(1)},
                ActivationForm::rounded, rows, tiles.data());
    py::array_t<int8_t> numbers({x.shape(0), x.shape(1)});
    py::array_t<float> scales({py::ssize_t{2}, x.shape(0), blocks});
    py::array_t<int32_t> starts({py::ssize_t{2}, x.shape(0), blocks});
    for (int tile = 0; tile < tile_count(rows); ++tile) {
        const int first = tile_first_row(rows, tile);
        const int tokens = tile_first_row(rows, tile + 1) - first;
        for (py::ssize_t b = 0; b < blocks; ++b) {
            const uint8_t* block = tiles.data() + activation_bytes(ActivationForm::rounded, first, x.shape(1)) +
                                   static_cast<size_t>(b) * kRoundedBytes * tokens;
            for (int t = 0; t < tokens; ++t) {
                for (int k = 0; k < kBlock; ++k) {
                    numbers.mutable_at(first + t, b * kBlock + k) = static_cast<int8_t>(block[(k / 4 * tokens + t) * 4 + k % 4]);
                }
                const uint8_t* rest = block + size_t{kBlock} * tokens + size_t{4} * t;
                for (int i = 0; i < 2; ++i) {
                    std::memcpy(&scales.mutable_at(i, first + t, b), rest + size_t{4} * tokens * i, 4);
                    std::memcpy(&starts.mutable_at(i, first + t, b), rest + size_t{4} * tokens * (2 + i), 4);
                }
            }
        }
    }
    return py::make_tuple(numbers, scales[py::int_(0)], scales[py::int_(1)], starts[py::int_(0)], starts[py::int_(1)]);
}

// Cells of one page, one layer and head: keys and values float32 (positions, head_size) from position `offset` on. Returns the
// page's bytes, of which nothing else is written, and the seconds of CPU of each time.
py::tuple page(const Floats& keys, const Floats& values, const std::string& kernels, const std::string& type, int offset, int repeat) {
    if (keys.ndim() != 2 || values.ndim() != 2 || keys.shape(0) != values.shape(0) || keys.shape(1) != values.shape(1) || offset < 0 ||
        keys.shape(0) < 1 || offset + keys.shape(0) > kPageSize) {
        throw py::value_error("keys and values must have shape (positions of a page, head_size)");
    }
    const RowKernels& chosen = kernels_named(kernels);
    const auto size = static_cast<int>(keys.shape(1));
    const KvType kind = type == "f16" ? KvType::f16 : KvType::int8;
    const CellShape cells{1, size, size};
    KvPool pool({&cells, 1}, kind);
    pool.ensure(1);
    const size_t bytes = KvPool::page_bytes({&cells, 1}, kind);
    const PageView view = pool.view(0, 0, 0);
    auto* memory = static_cast<uint8_t*>(const_cast<void*>(view.keys));
    std::memset(memory, 0xee, bytes);
    const HeadRows rows{static_cast<int>(keys.shape(0)), keys.data(), static_cast<size_t>(size), values.data(), static_cast<size_t>(size)};
    py::list seconds;
    for (int i = 0; i < repeat; ++i) {
        const double start = cpu_seconds();
        pool.write(chosen, 0, offset, 0, 0, rows);
        seconds.append(cpu_seconds() - start);
    }
    return py::make_tuple(py::array_t<uint8_t>(static_cast<py::ssize_t>(bytes), memory), seconds);
}

// float32 (weights), float64 (blocks' sums), float32 (their largest) of a row of logits.
py::tuple weigh(const Floats& logits, float best, float factor, const std::string& kernels) {
    if (logits.ndim() != 1) {
        throw py::value_error("logits must have one dimension");
    }
    const py::ssize_t blocks = (logits.size() + kWeighed - 1) / kWeighed;
    py::array_t<float> weights(logits.size());
    py::array_t<double> sums(blocks);
    py::array_t<float> tops(blocks);
    kernels_named(kernels).weigh(logits.data(), logits.size(), best, factor, weights.mutable_data(), sums.mutable_data(),
                                 tops.mutable_data());
    return py::make_tuple(weights, sums, tops);
}

}  // namespace

void bind_rows(py::module_& m) {
    m.def("row_kernels", [] {
        std::vector<std::string> names;
        for (const RowKernels* kernels : all_row_kernels()) {
            if (kernels->usable()) {
                names.emplace_back(kernels->name);
            }
        }
        return names;
    });
    m.def("quantize_activations", &quantize, py::arg("x"));
    m.def("activation_tiles", &tiles, py::arg("x"), py::arg("kernels"), py::arg("form") = "rounded", py::arg("before") = "",
          py::arg("weight") = std::vector<float>{}, py::arg("epsilon") = 0.0f, py::arg("parts") = 1, py::arg("repeat") = 1, py::arg("bias") = std::vector<float>{});
    m.def("weigh", &weigh, py::arg("logits"), py::arg("best"), py::arg("factor"), py::arg("kernels"));
    m.def("stored_page", &page, py::arg("keys"), py::arg("values"), py::arg("kernels"), py::arg("type") = "f16", py::arg("offset") = 0,
          py::arg("repeat") = 1);
}

}  // namespace tokenloom
