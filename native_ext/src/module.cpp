// The pybind11 module tokenloom.native_ext._core: the version check, then the parts (bindings.h).

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <string>

#include "bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_core, m) {
    // ggml's ABI moves between versions: a mismatch would corrupt memory rather than fail.
    if (std::strcmp(ggml_version(), TOKENLOOM_GGML_VERSION) != 0) {
        throw py::import_error(std::string("tokenloom was compiled against ggml " TOKENLOOM_GGML_VERSION " but found ggml ") +
                               ggml_version() + "; install the matching libggml-python or rebuild tokenloom");
    }
    // llamafile's matrix multiplication picks its path by the number of rows: logits would depend on the batch.
    if (ggml_cpu_has_llamafile() != 0) {
        throw py::import_error("this ggml was built with GGML_LLAMAFILE=ON, whose results depend on the batch; tokenloom needs OFF");
    }
    m.doc() = "The native core of tokenloom: GGUF reading, cells, forward, sampling.";
    m.attr("ggml_version") = ggml_version();
#ifdef TOKENLOOM_BIND_errors
    tokenloom::bind_errors(m);
#endif
#ifdef TOKENLOOM_BIND_cells
    tokenloom::bind_cells(m);
#endif
#ifdef TOKENLOOM_BIND_sampler
    tokenloom::bind_sampler(m);
#endif
    tokenloom::bind_gguf(m);
}
