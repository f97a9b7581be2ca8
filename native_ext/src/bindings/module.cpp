// The pybind11 module tokenloom.native_ext._core: the version check, then the parts (bindings.h).

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <string>

#include "bindings/bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_core, m) {
#ifdef TOKENLOOM_NEEDS_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
        throw py::import_error("this CPU lacks AVX2, FMA or F16C, which the ggml that tokenloom was built against needs");
    }
#endif
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
    tokenloom::bind_errors(m);
    tokenloom::bind_attention(m);
    tokenloom::bind_cells(m);
    tokenloom::bind_sampler(m);
    tokenloom::bind_gguf(m);
    tokenloom::bind_engine(m);
    tokenloom::bind_inspection(m);
    tokenloom::bind_kernels(m);
    tokenloom::bind_rows(m);
    tokenloom::bind_threads(m);
}
