// What a model file holds, read without loading it.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bindings/bindings.h"
#include "engine/engine.h"
#include "models/families.h"
#include "models/model.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

py::str text(const std::string& bytes) {
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

py::list layers_of(const Description& model) {
    py::list layers;
    for (int i = 0; i < model.layers(); ++i) {
        const LayerAttention& a = model.attention[static_cast<size_t>(i)];
        py::dict layer;
        layer["heads"] = a.heads;
        layer["kv_heads"] = a.kv_heads;
        layer["key_size"] = a.key_size;
        layer["value_size"] = a.value_size;
        layer["window"] = a.window;
        layer["turns"] = a.rope >= 0;
        layer["feed_forward"] = model.feed_forward[static_cast<size_t>(i)];
        layers.append(layer);
    }
    return layers;
}

py::object experts_of(const Experts& experts) {
    if (experts.count == 0) {
        return py::none();
    }
    py::dict out;
    out["count"] = experts.count;
    out["used"] = experts.used;
    out["feed_forward"] = experts.feed_forward;
    out["shared"] = experts.shared;
    return out;
}

py::dict inspect(const std::string& path) {
    const Model model(path, false, {});
    const Description& d = model.description();
    py::dict out;
    out["architecture"] = d.architecture;
    out["models"] = family_of(model.file()).models;
    out["name"] = text(d.name);
    out["vocabulary"] = d.vocabulary;
    out["embedding"] = d.embedding;
    out["context"] = d.context;
    out["layers"] = layers_of(d);
    out["experts"] = experts_of(d.experts);
    py::dict types;
    for (const auto& [name, type] : model.weights_by_type()) {
        types[py::str(name)] = py::make_tuple(type.matrices, type.file_bytes, type.memory_bytes, type.quick);
    }
    out["types"] = types;
    py::dict cells;
    for (int type = 0; type < kKvTypes; ++type) {
        cells[kKvTypeNames[type]] = KvPool::page_bytes(cell_shapes(d), static_cast<KvType>(type)) / kPageSize;
    }
    out["cell_bytes"] = cells;
    return out;
}

}  // namespace

void bind_inspection(py::module_& m) {
    m.def("families", [] {
        py::list out;
        for (const Family& family : all_families()) {
            out.append(py::make_tuple(family.architecture, family.models));
        }
        return out;
    });
    m.def("inspect", &inspect, py::arg("path"));
}

}  // namespace tokenloom
