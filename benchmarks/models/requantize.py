"""A GGUF file's weights in other types: dequantized, then quantized again by ggml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

from benchmarks.models.quantizer import Quantizer, Type, q4_k_m

#: Set by the writer itself.
OWN_FIELDS = ("general.architecture", "general.file_type", "general.quantization_version")


def copy_fields(reader: GGUFReader, writer: GGUFWriter, *, leave: tuple[str, ...] = ()) -> None:
    """All of a file's metadata, but what the writer sets and what to ``leave`` (beginnings of names)."""
    for name, field in reader.fields.items():
        if name in OWN_FIELDS or name.startswith(("GGUF.", *leave)):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)


def requantize(source: Path, target: Path, mix: str) -> Counter[str]:
    """Write ``target`` with the weights of ``source`` in ``mix``: Q8_0 or Q4_K_M. Matrices by type."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    layers = int(reader.fields[f"{architecture}.block_count"].contents())
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    choose: Callable[[str, int], Type]
    if mix == "Q8_0":
        choose, file_type = lambda name, columns: Type.Q8_0, LlamaFileType.MOSTLY_Q8_0
    elif mix == "Q4_K_M":
        choose = lambda name, columns: q4_k_m(name, columns, layers, tied=tied)  # noqa: E731
        file_type = LlamaFileType.MOSTLY_Q4_K_M
    else:
        raise ValueError(f"mix {mix!r} is not one of Q8_0, Q4_K_M")
    quantizer = Quantizer()
    beside = target.with_suffix(".part")
    writer = GGUFWriter(beside, architecture)
    copy_fields(reader, writer)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    types: Counter[str] = Counter()
    for tensor in reader.tensors:
        values: Any = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim != 2:
            writer.add_tensor(tensor.name, values)
            continue
        kind = choose(tensor.name, values.shape[1])
        types[kind.name] += 1
        writer.add_tensor(tensor.name, quantizer(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(target)
    return types
