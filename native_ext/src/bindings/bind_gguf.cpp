#include "bindings/bindings.h"
#include "gguf/gguf.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

py::object text(std::string_view bytes) {
    // Vocabularies hold tokens that are half a character: no byte may be lost.
    PyObject* object = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
    if (object == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(object);
}

py::object to_python(const GgufFile& file, const GgufValue& value) {
    struct Visitor {
        const GgufFile& file;
        py::object operator()(uint64_t v) const { return py::int_(v); }
        py::object operator()(int64_t v) const { return py::int_(v); }
        py::object operator()(double v) const { return py::float_(v); }
        py::object operator()(bool v) const { return py::bool_(v); }
        py::object operator()(std::string_view v) const { return text(v); }
        py::object operator()(const GgufArray& v) const {
            py::list list(v.count);
            size_t i = 0;
            file.for_each(v, [&](const GgufValue& element) { list[i++] = to_python(file, element); });
            return list;
        }
    };
    return std::visit(Visitor{file}, value.data);
}

}  // namespace

py::dict metadata_dict(const GgufFile& file) {
    py::dict out;
    for (const auto& [key, value] : file.values()) {
        out[text(key)] = to_python(file, value);
    }
    return out;
}

void bind_gguf(py::module_& m) {
    m.def(
        "read_metadata",
        [](const std::string& path) {
            const MappedFile mapped(path);
            const GgufFile file(mapped);
            return metadata_dict(file);
        },
        py::arg("path"));
    // Where a model file's tensor data begin.
    m.def(
        "header_bytes",
        [](const std::string& path) {
            const MappedFile mapped(path);
            return GgufFile(mapped).data_offset();
        },
        py::arg("path"));
}

}  // namespace tokenloom
