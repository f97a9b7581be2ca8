// The parts of the pybind11 module, one function each; module.cpp calls them in order.

#pragma once

#include <pybind11/pybind11.h>

namespace tokenloom {

class GgufFile;

// errors.h -> the classes of tokenloom.native_ext.engine.
void bind_errors(pybind11::module_& m);
void bind_attention(pybind11::module_& m);
void bind_cells(pybind11::module_& m);
void bind_sampler(pybind11::module_& m);
void bind_gguf(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_inspection(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);
void bind_rows(pybind11::module_& m);
void bind_threads(pybind11::module_& m);

// The file's key-values as a dict: strings decoded as UTF-8 with surrogateescape, arrays as lists.
pybind11::dict metadata_dict(const GgufFile& file);

}  // namespace tokenloom
