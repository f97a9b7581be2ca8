"""Models that cannot be served are refused at load, with the file, what is wrong and what is supported."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry, ModelError
from tokenloom.native_ext.ggml import load

TINY = TinyLlama(embedding=32, feed_forward=32, heads=2, kv_heads=1, vocabulary=11)
ZEROS = np.zeros


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        load(EngineSettings(model=path))
    assert str(raised.value).startswith(str(path) + ": ")


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": (
        {"general.architecture": "bert"},
        "architecture 'bert' is not .*; supported are 'llama'.*'qwen2'",
    ),
    "no layers": ({"llama.block_count": None}, "'llama.block_count' is missing"),
    "a layer count of 0": ({"llama.block_count": 0}, "'llama.block_count' is 0; it must be from 1"),
    "more layers than tensors": ({"llama.block_count": 3}, "'blk.2.attn_norm.weight' is missing"),
    "fewer layers than tensors": ({"llama.block_count": 1}, "'blk.1.attn_norm.weight' has no place"),
    "a layer count of text": ({"llama.block_count": "two"}, "'llama.block_count' must be an integer"),
    "another width": ({"llama.embedding_length": 64}, r"'token_embd.weight' has shape \[32, 11\], expected \[64"),
    "another feed-forward": ({"llama.feed_forward_length": 64}, r"ffn_gate.weight' has shape .* expected \[32, 64\]"),
    "heads that do not divide": ({"llama.attention.head_count_kv": 3, "llama.attention.head_count": 4}, "no multiple"),
    "another number of kv heads": ({"llama.attention.head_count_kv": 2}, "'blk.0.attn_k.weight' has shape"),
    "heads that differ by layer": (
        {"llama.attention.head_count_kv": [1, 2]},
        r"'blk.1.attn_k.weight' .* expected \[32, 32\]",
    ),
    "fewer heads than layers": ({"llama.attention.head_count_kv": [1]}, "has 1 elements; the model has 2 layers"),
    "values of another size": ({"llama.attention.value_length": 8}, r"'blk.0.attn_v.weight' .* expected \[32, 8\]"),
    "an odd head": ({"llama.attention.key_length": 15, "llama.attention.value_length": 15}, "head size of 15"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "rms_epsilon' must be given"),
    "an epsilon of nan": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "not a finite"),
    "no context": ({"llama.context_length": None}, "'llama.context_length' is missing"),
    "rotating more than a head": ({"llama.rope.dimension_count": 18}, "dimension_count' is 18"),
    "a rotary base of 0": ({"llama.rope.freq_base": 0.0}, "freq_base' is 0"),
    "longrope without factors": ({"llama.rope.scaling.type": "longrope"}, "'rope_factors_short.weight' is missing"),
    "another scaling": ({"llama.rope.scaling.type": "su"}, "'su' .*; supported are none, linear, yarn and longrope"),
    "a scaling factor below 0": ({"llama.rope.scaling.factor": -2.0}, "scaling.factor' is -2"),
    "experts, but not how many": ({"llama.expert_count": 8}, "'llama.expert_used_count' is missing"),
    "10^9 experts": ({"llama.expert_count": 10**9}, "expert_count' is 1000000000; it must be from 0 to 4096"),
    "more used than there are": (
        {"llama.expert_count": 4, "llama.expert_used_count": 5},
        "expert_used_count' is 5; it must be from 1 to 4",
    ),
    "attention both ways": ({"llama.attention.causal": False}, "without causal attention"),
    "a scale for logits": ({"llama.logit_scale": 0.5}, "'llama.logit_scale' is 0.5"),
    "one part of several": ({"split.count": 3}, "split into 3 files"),
    "another vocabulary": ({"tokenizer.ggml.tokens": ["a", "b"]}, "no list of 11 tokens"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_cannot_be_served(name: str, tmp_path: Path) -> None:
    overrides, message = VALUES[name]
    refused(replace(TINY, overrides=overrides).write(tmp_path / "m.gguf"), message)


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "no embedding": ({"token_embd.weight": None}, "'token_embd.weight' is missing"),
    "no output norm": ({"output_norm.weight": None}, "'output_norm.weight' is missing"),
    "no query in layer 1": ({"blk.1.attn_q.weight": None}, "'blk.1.attn_q.weight' is missing"),
    "a norm of another size": ({"blk.0.attn_norm.weight": ZEROS(31, np.float32)}, r"shape \[31\], expected \[32\]"),
    "a matrix for a norm": ({"output_norm.weight": ZEROS((2, 32), np.float32)}, r"shape \[32, 2\], expected \[32\]"),
    "a matrix on its side": ({"blk.0.ffn_down.weight": ZEROS((16, 64), np.float32)}, r"shape \[64, 16\], expected"),
    "a cube": ({"blk.0.attn_v.weight": ZEROS((2, 16, 32), np.float32)}, r"shape \[32, 16, 2\], expected \[32, 16\]"),
    "a bias of another size": ({"blk.0.attn_q.bias": ZEROS(33, np.float32)}, "'blk.0.attn_q.bias' has shape"),
    "rotary factors of another size": ({"rope_freqs.weight": ZEROS(16, np.float32)}, "'rope_freqs.weight' has shape"),
    "a tensor of something else": ({"blk.0.attn_q_norm.weight": ZEROS(16, np.float32)}, "attn_q_norm.weight' has no"),
    "an output head of another size": ({"output.weight": ZEROS((12, 32), np.float32)}, r"expected \[32, 11\]"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_cannot_be_served(name: str, tmp_path: Path) -> None:
    tensors, message = TENSORS[name]
    refused(TINY.write(tmp_path / "m.gguf", tensors), message)


def test_types_that_cannot_be_multiplied_are_named_with_those_that_can(tmp_path: Path) -> None:
    raw = {"blk.0.ffn_up.weight": (ZEROS((32, 32), np.int32), gguf.GGMLQuantizationType.I32)}
    refused(TINY.write(tmp_path / "m.gguf", raw=raw), "has type i32, which ggml cannot multiply; supported are .*q4_K")


def test_a_vector_of_a_quantized_type(tmp_path: Path) -> None:
    raw = {"output_norm.weight": (ZEROS(34, np.uint8), gguf.GGMLQuantizationType.Q8_0)}
    refused(TINY.write(tmp_path / "m.gguf", raw=raw), "'output_norm.weight' has type q8_0; f32, f16 and bf16")


def test_a_model_larger_than_the_memory_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """A file with a hole: its last tensor claims 2 TiB that were never written."""
    vocabulary = 1 << 24
    wide = replace(TINY, embedding=1 << 15, heads=2, head_size=16, layers=1, tied=True, vocabulary=11)
    path = wide.write(tmp_path / "m.gguf")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 8
    raw[at : at + 8] = vocabulary.to_bytes(8, "little")
    tokens = raw.index(b"tokenizer.ggml.tokens")
    raw[tokens : tokens + 9] = b"elsewhere"  # no longer a vocabulary of 11
    # Move the embedding's data behind everything else.
    offset = at + 8 + 4
    end = (len(raw) + 31) // 32 * 32
    data = end - int(gguf.GGUFReader(path).data_offset)
    raw[offset : offset + 8] = data.to_bytes(8, "little")
    path.write_bytes(raw)
    size = vocabulary * (1 << 15) * 4
    os.truncate(path, end + size)
    with pytest.raises(ModelError, match="the weights take") as raised:
        load(EngineSettings(model=path))
    taken, allowed = map(int, re.findall(r"(?:take|use) (\d+) bytes", str(raised.value)))
    assert taken > size > allowed > 0


def test_old_inverse_frequencies_are_passed_over(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.gguf", {"blk.0.attn_rot_embd": ZEROS(8, np.float32)})
    assert load(EngineSettings(model=path)).geometry.layers == 2


def test_per_layer_values_that_agree_are_taken(tmp_path: Path) -> None:
    path = replace(TINY, overrides={"llama.attention.head_count_kv": [1, 1]}).write(tmp_path / "m.gguf")
    assert load(EngineSettings(model=path)).geometry.kv_heads == 1


def test_geometry_says_what_the_file_is(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.gguf")
    engine = load(EngineSettings(model=path, kv_bytes=10 * 16384, threads=1, max_batch_tokens=99, max_sequences=7))
    g = engine.geometry
    assert (g.architecture, g.name, g.layers, g.heads, g.kv_heads, g.head_size) == ("llama", "tiny", 2, 2, 1, 16)
    assert (g.embedding, g.vocabulary, g.context, g.page_size) == (32, 11, 1024, 64)
    assert g.page_bytes == 2 * 2 * 2 * 16 * 64  # keys and values, float16, layers, head, positions
    assert (g.max_pages, g.max_sequences, g.max_batch_tokens, g.threads) == (20, 7, 99, 1)
    assert engine.metadata["llama.block_count"] == 2
    with pytest.raises(TypeError):
        engine.metadata["llama.block_count"] = 3  # type: ignore[index]


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    def of(model: TinyLlama, name: str) -> str:
        return load(EngineSettings(model=model.write(tmp_path / name))).geometry.fingerprint

    first = of(TINY, "a.gguf")
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert of(TINY, "b.gguf") == first
    assert of(replace(TINY, seed=2), "c.gguf") != first
    assert of(replace(TINY, overrides={"general.name": "other"}), "d.gguf") != first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_bytes": 100}, "kv_bytes is 100; this model needs at least 8192, one page of 64 tokens"),
        ({"kv_bytes": -1}, "kv_bytes is -1"),
        ({"threads": -1}, "threads is -1"),
        ({"max_batch_tokens": 0}, "max_batch_tokens is 0"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"kv_bytes": 1 << 63}, f"kv_bytes is {1 << 63}; it must fit 64 bits"),
        ({"threads": -(1 << 70)}, f"threads is -{1 << 70}; it must fit 64 bits"),
    ],
)
def test_settings_out_of_range(settings: dict[str, int], message: str, tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.gguf")
    with pytest.raises(EngineError, match=message):
        load(EngineSettings(model=path, **settings))


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = load(EngineSettings(model=TINY.write(tmp_path / "m.gguf")))
    sequence = engine.new()
    engine.close()
    engine.close()
    for call in (
        engine.new,
        lambda: engine.length(sequence),
        lambda: engine.forward([Entry(sequence, [1])]),
        lambda: engine.stats,
    ):
        with pytest.raises(EngineError, match="closed"):
            call()
