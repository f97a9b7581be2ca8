"""A llama-shaped file with random weights in Q4_K_M, for speed only: what it says means nothing.

1.2 billion parameters by default, in the proportions of Llama 3.2 1B; vocabulary and tokenizer are another file's, so
that every engine can load it. Written tensor by tensor: it needs the memory of the largest alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFWriter, LlamaFileType

from benchmarks.models.quantizer import Type, q4_k_m
from benchmarks.models.requantize import copy_fields

#: The weights' standard deviation.
SPREAD = 0.02


@dataclass(frozen=True)
class Shape:
    """Every row length is a multiple of 256, so that the K types fit."""

    layers: int = 18
    embedding: int = 2048
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    context: int = 8192

    def tensors(self, vocabulary: int) -> dict[str, tuple[int, ...]]:
        """Name -> (rows, columns), or (columns,) of a norm. Embeddings and output are one matrix."""
        wide, kv = self.embedding, self.embedding // self.heads * self.kv_heads
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, wide), "output_norm.weight": (wide,)}
        for layer in range(self.layers):
            at = f"blk.{layer}."
            found |= {
                at + "attn_norm.weight": (wide,), at + "ffn_norm.weight": (wide,),
                at + "attn_q.weight": (wide, wide), at + "attn_output.weight": (wide, wide),
                at + "attn_k.weight": (kv, wide), at + "attn_v.weight": (kv, wide),
                at + "ffn_gate.weight": (self.hidden, wide), at + "ffn_up.weight": (self.hidden, wide),
                at + "ffn_down.weight": (wide, self.hidden),
            }  # fmt: skip
        return found


def random_blocks(kind: Type, rows: int, columns: int, random: np.random.Generator) -> Any:
    """uint8 (rows, bytes of a row) of Q4_K or Q6_K: random quants under equal scales, with mean near 0."""
    block, size = GGML_QUANT_SIZES[kind]
    count = rows * columns // block
    blocks = random.integers(0, 256, (count, size), np.uint8)
    if kind is Type.Q4_K:  # d, dmin, 12 bytes of scales and minimums, all 32; then quants of 0..15
        scale = SPREAD / (32 * 4.61)
        blocks[:, 0:2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        blocks[:, 2:4] = np.frombuffer(np.float16(7.5 * scale).tobytes(), np.uint8)
        blocks[:, 4:12] = 0xA0
        blocks[:, 12:16] = 0
    elif kind is Type.Q6_K:  # quants of -32..31; then 16 signed scales, all 8, and d
        blocks[:, 192:208] = 8
        blocks[:, 208:210] = np.frombuffer(np.float16(SPREAD / (8 * 18.5)).tobytes(), np.uint8)
    else:
        raise ValueError(f"no random blocks of type {kind.name}")
    return blocks.reshape(rows, columns // block * size)


def write(target: Path, tokenizer_of: Path, shape: Shape | None = None, seed: int = 1) -> int:
    """Write the file; its number of parameters."""
    shape = shape or Shape()
    reader = GGUFReader(tokenizer_of)
    tensors = shape.tensors(len(reader.fields["tokenizer.ggml.tokens"].data))
    beside = target.with_suffix(".part")
    writer = GGUFWriter(beside, "llama")
    copy_fields(reader, writer, leave=("llama.", "general.name", "general.size_label"))
    writer.add_name("random weights")
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(2)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_vocab_size(tensors["token_embd.weight"][0])
    writer.add_rope_dimension_count(shape.embedding // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    kinds = {
        name: q4_k_m(name, size[1], shape.layers, tied=True) if len(size) == 2 else Type.F32
        for name, size in tensors.items()
    }
    for name, size in tensors.items():
        if kinds[name] is Type.F32:
            writer.add_tensor_info(name, size, np.dtype(np.float32), 4 * size[0])
        else:
            block, each = GGML_QUANT_SIZES[kinds[name]]
            row = size[1] // block * each
            writer.add_tensor_info(name, (size[0], row), np.dtype(np.uint8), size[0] * row, raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for name, size in tensors.items():
        kind = kinds[name]
        writer.write_tensor_data(
            np.ones(size, np.float32) if kind is Type.F32 else random_blocks(kind, size[0], size[1], random)
        )
    writer.close()
    beside.replace(target)
    return sum(int(np.prod(size)) for size in tensors.values())
