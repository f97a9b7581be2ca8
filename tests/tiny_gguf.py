"""Writing GGUF files of a few kilobytes with the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

#: Bytes as the file holds them, and their type.
Stored = tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]


def write(path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Path:
    """Key-values under their whole names: ints become uint32, numpy's int32 that, floats float32, lists arrays."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, np.int32):
            writer.add_int32(name, int(value))
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
