"""Model files of one model in every weight type, for measuring what a type and its arithmetic cost.

All are made from the float16 model: the numbers of the file at hand, rounded to float16. Quantizing is ggml's own
(``ggml_quantize_chunk``, what llama.cpp's quantizer calls), every matrix in the type, the embedding included.

The K types come in superblocks of 256 columns, which SmolLM2's 576 are no multiple of. For them the model is *widened*
first: zeros are appended until every number of columns is a multiple of 256 (576 to 768, 9 query heads to 12, 3
key-value heads to 4), the norms' weights are multiplied by sqrt(576 / 768) and epsilon by 576 / 768, since the mean of
squares is now taken over more numbers. The result is the same function of its tokens, apart from rounding; its logits
can be compared with the float16 model's own, and every matrix is really of the K type.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import gguf
import libggml
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
FLOATS = ("F16", "BF16", "F32")
#: Every weight type that our own kernels are for.
TYPES = (*QUANTIZED, *FLOATS)
SUPERBLOCK = 256


def is_wide(kind: str) -> bool:
    """Whether the model is widened for a type."""
    return kind.endswith("_K")


@dataclass(frozen=True)
class Source:
    """The float16 model. ``tensors``: float32 by GGUF name, matrices (out, in) holding float16 numbers; ``fields``: the
    metadata, (value, type, type of elements) by key."""

    tensors: dict[str, Array]
    fields: dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]

    @classmethod
    def read(cls, path: Path) -> Source:
        """Of any llama model file whose types the package ``gguf`` can read."""
        reader = gguf.GGUFReader(path)
        fields = {}
        for name, field in reader.fields.items():
            if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
                element = field.types[-1] if len(field.types) > 1 else None
                fields[name] = (field.contents(), field.types[0], element)
        tensors = {}
        for tensor in reader.tensors:
            data = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            tensors[tensor.name] = data.astype(np.float16).astype(np.float32) if data.ndim > 1 else data
        return cls(tensors, fields)

    def write(self, path: Path, kind: str, rest: str | None = None) -> Path:
        """The model with every matrix in the type, widened if need be; or, given one for the ``rest``, as it is, with
        those matrices in the type whose columns allow it.
        """
        model = self.widened() if is_wide(kind) and rest is None else self
        writer = gguf.GGUFWriter(path, "llama")
        for name, (value, type_, element) in model.fields.items():
            writer.add_key_value(name, value, type_, element)
        for name, data in model.tensors.items():
            if data.ndim > 1:
                stored = kind if rest is None or data.shape[1] % block_of(kind) == 0 else rest
                writer.add_tensor(name, encode(data, stored), raw_dtype=gguf.GGMLQuantizationType[stored])
            else:
                writer.add_tensor(name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def widened(self) -> Source:
        """The same function with every number of columns a multiple of 256."""
        width = int(self._value("embedding_length"))
        heads, kv_heads = int(self._value("attention.head_count")), int(self._value("attention.head_count_kv"))
        size, group = width // heads, heads // kv_heads
        if self._value("feed_forward_length") % SUPERBLOCK:
            raise ValueError("a feed-forward length that is no multiple of 256 is not catered for")
        while group * kv_heads * size % SUPERBLOCK or group * kv_heads * size < width:
            kv_heads += 1
        wide = group * kv_heads * size
        if wide != ceil(width / SUPERBLOCK) * SUPERBLOCK:
            raise ValueError("heads and embedding would need different widths")
        shrink = width / wide  # of the mean of squares

        def resized(name: str, data: Array) -> Array:
            if data.ndim == 1:
                return np.pad(data * np.float32(sqrt(shrink)), (0, wide - width))
            rows, columns = data.shape
            to_rows = {width: wide}.get(rows, rows)
            if name.endswith(("attn_k.weight", "attn_v.weight")):
                to_rows = kv_heads * size
            if name == "token_embd.weight" or name == "output.weight":
                to_rows = rows
            return np.pad(data, ((0, to_rows - rows), (0, {width: wide}.get(columns, columns) - columns)))

        changed: dict[str, Any] = {
            "embedding_length": wide,
            "attention.head_count": group * kv_heads,
            "attention.head_count_kv": kv_heads,
            "attention.layer_norm_rms_epsilon": self._value("attention.layer_norm_rms_epsilon") * shrink,
        }
        fields = dict(self.fields)
        for key, value in changed.items():
            fields["llama." + key] = (value, *fields["llama." + key][1:])
        return Source({name: resized(name, data) for name, data in self.tensors.items()}, fields)

    def _value(self, key: str) -> Any:
        return self.fields["llama." + key][0]


def block_of(kind: str) -> int:
    """How many columns of a type are stored together."""
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def encode(data: Array, kind: str) -> Array:
    """Float32 (rows, columns) as GGUF stores it: uint8 (rows, bytes), or float32 or float16 (rows, columns)."""
    if kind == "F32":
        return data
    if kind == "F16":
        return data.astype(np.float16)
    if kind == "BF16":
        return np.asarray(gguf.quants.quantize(data, gguf.GGMLQuantizationType.BF16))
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows, columns = data.shape
    if columns % block:
        raise ValueError(f"{columns} columns are no multiple of {kind}'s block of {block}")
    source = np.ascontiguousarray(data, np.float32)
    out = np.zeros((rows, columns // block * size), np.uint8)
    _ggml().ggml_quantize_chunk(
        int(gguf.GGMLQuantizationType[kind]), source.ctypes.data, out.ctypes.data, 0, rows, columns, None
    )  # no weights of importance: as without an imatrix
    return out


def _ggml() -> ctypes.CDLL:
    """The library ggml-base of the package libggml-python."""
    for folder in libggml.__path__:
        for path in sorted(Path(folder).glob("lib*/libggml-base.*")):
            library = ctypes.CDLL(str(path))
            function = library.ggml_quantize_chunk
            integers = [ctypes.c_int64] * 3
            function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *integers, ctypes.c_void_p]
            function.restype = ctypes.c_size_t
            return library
    raise FileNotFoundError("libggml-base is not in the package libggml-python")
