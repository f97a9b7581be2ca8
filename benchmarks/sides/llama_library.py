"""llama.cpp's C functions, as far as they are needed, from a native build or from the package ``xllamacpp``.

The structs' layout is that of llama.h of late 2026. It is checked against the library's own defaults before anything is
passed by value, and each struct ends in room to spare, which the library neither reads nor minds.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, Structure, c_bool, c_float, c_int, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from importlib import metadata
from pathlib import Path
from typing import Any

#: Where `make bench-llama` puts its build.
NATIVE = Path(__file__).resolve().parents[2] / "build" / "bench" / "llama.cpp" / "bin" / "libllama.so"

SPARE = ("spare", c_uint8 * 256)


class ModelParams(Structure):
    """struct llama_model_params."""

    _fields_ = [
        ("devices", c_void_p), ("tensor_buft_overrides", c_void_p), ("n_gpu_layers", c_int32), ("split_mode", c_int),
        ("load_mode", c_int), ("lazy_mode", c_int), ("main_gpu", c_int32), ("tensor_split", c_void_p),
        ("progress_callback", c_void_p), ("progress_callback_user_data", c_void_p), ("kv_overrides", c_void_p),
        ("vocab_only", c_bool), ("check_tensors", c_bool), ("use_extra_bufts", c_bool), ("no_host", c_bool),
        ("no_alloc", c_bool), ("load_mtp", c_bool), SPARE,
    ]  # fmt: skip


CONTEXT_FIELDS: list[tuple[str, Any]] = [
    ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
    ("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32), ("n_outputs_max_per_seq", c_uint32),
    ("n_threads", c_int32), ("n_threads_batch", c_int32), ("ctx_type", c_int), ("rope_scaling_type", c_int),
    ("pooling_type", c_int), ("attention_type", c_int), ("flash_attn_type", c_int), ("rope_freq_base", c_float),
    ("rope_freq_scale", c_float), ("yarn_ext_factor", c_float), ("yarn_attn_factor", c_float),
    ("yarn_beta_fast", c_float), ("yarn_beta_slow", c_float), ("yarn_orig_ctx", c_uint32),
    ("defrag_thold", c_float), ("cb_eval", c_void_p), ("cb_eval_user_data", c_void_p), ("type_k", c_int),
    ("type_v", c_int), ("abort_callback", c_void_p), ("abort_callback_data", c_void_p),
]  # fmt: skip
CONTEXT_FLAGS: list[tuple[str, Any]] = [
    ("embeddings", c_bool), ("offload_kqv", c_bool), ("no_perf", c_bool), ("op_offload", c_bool),
    ("swa_full", c_bool), ("kv_unified", c_bool), SPARE,
]  # fmt: skip


class ContextParams(Structure):
    """struct llama_context_params."""

    _fields_ = [*CONTEXT_FIELDS, *CONTEXT_FLAGS]


class NewerContextParams(Structure):
    """The same of builds that have one more pointer before the flags."""

    _fields_ = [*CONTEXT_FIELDS, ("another", c_void_p), *CONTEXT_FLAGS]


class Batch(Structure):
    """struct llama_batch."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p), ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]  # fmt: skip


#: Name -> (result, arguments).
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [ctypes.c_char_p, ModelParams]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_model_free": (None, [c_void_p]),
    "llama_log_set": (None, [c_void_p, c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_state_seq_get_size": (c_size_t, [c_void_p, c_int32]),
    "llama_state_seq_get_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_state_seq_set_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (POINTER(c_float), [c_void_p]),
    "llama_print_system_info": (ctypes.c_char_p, []),
}


def find(build: str) -> Path:
    """The library of the ``native`` build or of the ``wheel``. FileNotFoundError saying how to get it."""
    if build == "native":
        if not NATIVE.exists():
            raise FileNotFoundError("llama.cpp is not built here: make bench-llama")
        return NATIVE
    spec = importlib.util.find_spec("xllamacpp")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    found = [path for folder in folders for path in Path(folder).glob("xllamacpp*.so")]
    if not found:
        raise FileNotFoundError("xllamacpp is not installed: pip install xllamacpp")
    return found[0]


def version(build: str) -> str:
    """Of the package that the library comes from; the native build is made of another's sources."""
    if build == "wheel":
        return f"xllamacpp {metadata.version('xllamacpp')}"
    sources = sorted(path.name.removesuffix(".tar.gz") for path in NATIVE.parents[1].glob("*.tar.gz"))
    return ", ".join(sources) or "unknown sources"


def features(library: Any) -> list[str]:
    """Instruction sets and other things that a build has, of ``NAME = 1 | NAME = 1``."""
    parts = library.llama_print_system_info().decode().rpartition(" : ")[2].split("|")
    return [name.strip() for name, _, value in (part.partition("=") for part in parts) if value.strip() == "1"]


def load(build: str) -> Any:
    """The library with its functions declared. RuntimeError when its structs are not laid out as expected here."""
    if build == "wheel":
        import xllamacpp  # noqa: F401  (loads what the extension needs from beside it)
    library = ctypes.CDLL(str(find(build)))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    model = library.llama_model_default_params()
    if (model.n_gpu_layers, model.use_extra_bufts, model.no_alloc, model.vocab_only) != (-1, True, False, False):
        raise RuntimeError("this llama.cpp has other model parameters than expected")
    seen = []
    for layout in (ContextParams, NewerContextParams):
        library.llama_context_default_params.restype = layout
        library.llama_init_from_model.argtypes = [c_void_p, layout]
        params = library.llama_context_default_params()
        numbers = (params.n_ctx, params.n_seq_max, params.flash_attn_type, params.yarn_ext_factor, params.type_v)
        seen.append((*numbers, params.embeddings, params.offload_kqv, params.no_perf, params.kv_unified))
        if seen[-1] == (512, 1, -1, -1.0, 1, False, True, True, False):
            library.llama_backend_init()
            return library
    raise RuntimeError(f"this llama.cpp has other context parameters than expected: {seen}")
