"""The forward gives what a plain float64 one gives, for every variant of the architecture that files ask for."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from native import reference
from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load

F16, BF16, F32 = (gguf.GGMLQuantizationType[name] for name in ("F16", "BF16", "F32"))
LLAMA3 = tuple(np.interp(np.arange(8), [0, 3, 7], [1.0, 1.5, 8.0]).tolist())

VARIANTS = {
    "plain": TinyLlama(),
    "tied": TinyLlama(tied=True),
    "one kv head": TinyLlama(kv_heads=1),
    "a kv head per head": TinyLlama(kv_heads=4),
    "six heads to a kv head": TinyLlama(heads=6, kv_heads=1),
    "seven heads to a kv head": TinyLlama(heads=14, kv_heads=2),
    "head size 64": TinyLlama(head_size=64),
    "head size 128": TinyLlama(head_size=128, heads=2),
    "head size 80": TinyLlama(head_size=80, heads=2),
    "head size 20, no whole vectors": TinyLlama(head_size=20),
    "head size 6, below a vector": TinyLlama(head_size=6, heads=2, kv_heads=1),
    "biases": TinyLlama(biases=True),
    "one layer": TinyLlama(layers=1),
    "rotating half a head": TinyLlama(rope_dimensions=8),
    "another rotary base": TinyLlama(freq_base=500000.0),
    "another epsilon": TinyLlama(rms_epsilon=0.1),
    "scaling none": TinyLlama(scaling="none", scaling_factor=4.0),
    "scaling linear": TinyLlama(scaling="linear", scaling_factor=4.0),
    "scaling linear by its old name": TinyLlama(scaling_factor=None, overrides={"llama.rope.scale_linear": 4.0}),
    "scaling yarn": TinyLlama(scaling="yarn", scaling_factor=8.0, original_context=128),
    "yarn, attention factor": TinyLlama(scaling="yarn", scaling_factor=2.0, original_context=64, attn_factor=1.3),
    "llama 3 factors": TinyLlama(rope_factors=LLAMA3, freq_base=500000.0),
    "f16 weights": TinyLlama(weight_type=F16),
    "bf16 weights": TinyLlama(weight_type=BF16),
    "f16 vectors": TinyLlama(vector_type=F16, biases=True),
}
EXPECTED = {"scaling linear by its old name": TinyLlama(scaling="linear", scaling_factor=4.0)}
# Largest and median error of a row, of the largest logit. Mostly a key or value that float32 rounds to the neighbouring
# float16; and activations are rounded to the weights' type.
TOLERANCE = {"f16 weights": (8e-3, 2e-3), "bf16 weights": (6e-2, 1e-2)}
LIKE_PLAIN = {"plain", "scaling none", "f16 weights", "bf16 weights"}

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
# Where in a block its float16 scales are, if not at its start.
SCALES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_a_float64_forward(name: str, tmp_path: Path) -> None:
    model = VARIANTS[name]
    tokens = np.random.default_rng(5).integers(0, model.vocabulary, 150).tolist()
    engine = load(EngineSettings(model=model.write(tmp_path / "tiny.gguf"), threads=1))
    sequence = engine.new()
    parts = [
        engine.forward([Entry(sequence, chunk, logits="all")])[0].logits
        for chunk in (tokens[:100], tokens[100:101], tokens[101:])
    ]
    ours = np.concatenate(parts)
    expected = reference.logits(EXPECTED.get(name, model), tokens)
    assert ours.shape == expected.shape
    error = np.abs(ours - expected).max(1) / np.abs(expected).max()
    largest, median = TOLERANCE.get(name, (2e-3, 2e-4))
    assert error.max() < largest
    assert np.median(error) < median
    if name not in LIKE_PLAIN:  # the variant must matter
        plain = reference.logits(VARIANTS["plain"], tokens)
        assert np.abs(plain - expected).max() / np.abs(expected).max() > 0.5


def test_every_position_of_a_long_context_is_attended_to(tmp_path: Path) -> None:
    model = TinyLlama(layers=1, context=1024)
    tokens = np.random.default_rng(6).integers(0, model.vocabulary, 1000).tolist()
    engine = load(EngineSettings(model=model.write(tmp_path / "tiny.gguf"), threads=2, max_batch_tokens=1000))
    ours = engine.forward([Entry(engine.new(), tokens, logits="all")])[0].logits
    expected = reference.logits(model, tokens)
    assert np.abs(ours - expected).max() / np.abs(expected).max() < 2e-3


def random_blocks(
    rng: np.random.Generator, kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]
) -> npt.NDArray[np.uint8]:
    """Random blocks of a quantized type, their float16 scales such that a row's dot product keeps its input's size."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (shape[0], shape[1] // block, size), np.uint8)
    steps = rng.uniform(0.5, 1, (*raw.shape[:2], 1))
    scale = 1e-4
    for _ in range(2):  # measure, then correct
        for at in SCALES.get(kind.name, (0,)):
            raw[..., at : at + 2] = (steps * scale).astype(np.float16).view(np.uint8)
        flat = raw.reshape(shape[0], -1)
        scale /= gguf.quants.dequantize(flat, kind).std() * np.sqrt(shape[1])
    return flat


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_weights_are_read_and_multiplied(kind: str, tmp_path: Path) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    model = TinyLlama(layers=1, embedding=256, feed_forward=256, heads=4, kv_heads=2, head_size=64)
    rng = np.random.default_rng(7)
    raw = {
        name: random_blocks(rng, quantization, data.shape) for name, data in model.tensors().items() if data.ndim > 1
    }
    path = model.write(tmp_path / "tiny.gguf", raw={name: (data, quantization) for name, data in raw.items()})
    engine = load(EngineSettings(model=path, threads=1))
    tokens = rng.integers(0, model.vocabulary, 40).tolist()
    ours = engine.forward([Entry(engine.new(), tokens, logits="all")])[0].logits

    weights = model.stored() | {name: gguf.quants.dequantize(data, quantization) for name, data in raw.items()}
    expected = reference.logits(model, tokens, weights)
    # What multiplying with activations of 8 bits costs.
    assert np.linalg.norm(ours - expected) / np.linalg.norm(expected) < 0.05
