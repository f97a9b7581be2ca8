// errors.h -> tokenloom.native_ext.engine, by name.
#include <pybind11/pybind11.h>

#include <exception>

#include "system/errors.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

template <typename... Arguments>
void raise(const char* name, const Arguments&... arguments) {
    const py::object type = py::module_::import("tokenloom.native_ext.engine").attr(name);
    const py::object error = type(arguments...);
    PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(std::exception_ptr thrown) {
    try {
        std::rethrow_exception(thrown);
    } catch (const ModelError& error) {
        raise("ModelError", error.what());
    } catch (const ContextFull& error) {
        raise("ContextFull", error.what());
    } catch (const BatchError& error) {
        raise("BatchError", error.what());
    } catch (const CellsExhausted& error) {
        raise("CellsExhausted", error.needed, error.free);
    } catch (const SequencesExhausted& error) {
        raise("SequencesExhausted", error.what());
    } catch (const EngineError& error) {
        raise("EngineError", error.what());
    }
}

}  // namespace

// Local to this module: another extension's exceptions are not ours to translate.
void bind_errors(py::module_&) { py::register_local_exception_translator(&translate); }

}  // namespace tokenloom
