// engine.py's Sampling as the C++ struct of that name.
#pragma once

#include <pybind11/pybind11.h>

#include "sampling/sampler.h"

namespace tokenloom {

// Reads the fields of a tokenloom.native_ext.engine.Sampling. BatchError: a field of the wrong type, or an integer that
// does not fit 64 bits; the message names the field and its value. Ranges are validate()'s business. Needs the GIL.
Sampling sampling_of(pybind11::handle object);

// TokenLogprobs' two fields: (chosen, ((token, logprob), ...)); None when none were asked for. Needs the GIL.
pybind11::object logprobs_to_python(const Sampled& sampled);

}  // namespace tokenloom
