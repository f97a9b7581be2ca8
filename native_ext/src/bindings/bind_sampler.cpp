// tokenloom.native_ext._core.sample and what belongs to it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <vector>

#include "sampling/philox.h"
#include "bindings/python_sampling.h"

namespace py = pybind11;

namespace tokenloom {

namespace {

template <typename T>
void read(py::handle value, const char* field, const char* kind, T& target) {
    py::detail::make_caster<T> caster;
    if (value.is_none() || !caster.load(value, true)) {
        PyErr_Clear();
        throw BatchError(std::string(field) + " is " + std::string(py::repr(value)) + "; it must be " + kind);
    }
    target = py::detail::cast_op<T>(caster);
}

constexpr const char* integer = "an integer of 64 bits";

py::tuple sample(const py::array_t<float, py::array::c_style>& logits, const std::vector<std::int32_t>& tokens,
                 std::uint64_t position, py::handle object) {
    if (logits.ndim() != 1) {
        throw BatchError("logits has " + std::to_string(logits.ndim()) + " dimensions; it must have 1");
    }
    const Sampling sampling = sampling_of(object);
    validate(sampling, logits.size());
    thread_local Sampler sampler;
    const Sampled sampled = sampler.sample({logits.data(), static_cast<std::size_t>(logits.size())}, tokens, position, sampling);
    return py::make_tuple(sampled.token, logprobs_to_python(sampled));
}

}  // namespace

Sampling sampling_of(py::handle object) {
    Sampling result;
    const auto number = [&](const char* field, double& target) { read(object.attr(field), field, "a number", target); };
    const auto whole = [&](const char* field, std::int64_t& target) { read(object.attr(field), field, integer, target); };
    number("temperature", result.temperature);
    whole("top_k", result.top_k);
    number("top_p", result.top_p);
    number("min_p", result.min_p);
    number("repetition_penalty", result.repetition_penalty);
    number("presence_penalty", result.presence_penalty);
    number("frequency_penalty", result.frequency_penalty);
    whole("penalty_window", result.penalty_window);
    read(object.attr("seed"), "seed", "an integer within 0 and 2**64 - 1", result.seed);
    const py::object logprobs = object.attr("logprobs");
    if (!logprobs.is_none()) {
        read(logprobs, "logprobs", integer, result.logprobs);
        if (result.logprobs < 0) {  // the core's -1 is Python's None
            throw BatchError("logprobs is " + std::to_string(result.logprobs) + "; it must be at least 0, or None");
        }
    }
    const py::object bias = object.attr("logit_bias");
    if (py::len(bias) > 0) {
        read(bias, "logit_bias", "(token, number) pairs", result.logit_bias);
    }
    return result;
}

py::object logprobs_to_python(const Sampled& sampled) {
    if (!sampled.with_logprobs) {
        return py::none();
    }
    py::tuple top(sampled.top.size());
    for (std::size_t index = 0; index < sampled.top.size(); ++index) {
        top[index] = py::make_tuple(sampled.top[index].first, sampled.top[index].second);
    }
    return py::make_tuple(sampled.logprob, top);
}

void bind_sampler(py::module_& m) {
    m.def("sample", &sample, py::arg("logits").noconvert(), py::arg("tokens"), py::arg("position"), py::arg("sampling"),
          "(token, None or (logprob of it, ((token, logprob), ...))) from one float32 row; see sampler.h. Raises BatchError "
          "for bad settings, EngineError for a row with NaN, +inf or nothing but -inf.");
    m.def(
        "validate_sampling",
        [](py::handle sampling, std::int64_t vocabulary) { validate(sampling_of(sampling), vocabulary); },
        py::arg("sampling"), py::arg("vocabulary"), "Raise BatchError naming the field, its value and its limit.");
    m.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"),
          "Four words of 32 bits from a counter of four and a key of two (Philox4x32-10).");
    m.def("philox_uniform", &philox_uniform, py::arg("seed"), py::arg("position"),
          "The uniform number in [0, 1), a multiple of 2**-53, of one position under one seed.");
}

}  // namespace tokenloom
