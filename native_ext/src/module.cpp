// The pybind11 module tokenloom.native_ext._core: conversions between Python and the C++ core, nothing else.

#include <ggml.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

namespace py = pybind11;

PYBIND11_MODULE(_core, m) {
    // ggml's ABI moves between versions: a mismatch would corrupt memory rather than fail.
    if (std::strcmp(ggml_version(), TOKENLOOM_GGML_VERSION) != 0) {
        throw py::import_error(std::string("tokenloom was compiled against ggml " TOKENLOOM_GGML_VERSION " but found ggml ") +
                               ggml_version() + "; install the matching libggml-python or rebuild tokenloom");
    }
    m.doc() = "The native core of tokenloom: GGUF reading, cells, forward, sampling.";
    m.attr("ggml_version") = ggml_version();
}
