"""Writes the corpus: model files of a few kilobytes that between them have every part a reader meets.

    python tests/fuzz/make_corpus.py

Files that once broke a reader are kept beside them, named for what was wrong. The ending is not .gguf because nobody
should take them for models.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import gguf

FOLDER = Path(__file__).parent / "corpus"
SMALL = {"layers": 1, "embedding": 32, "feed_forward": 32, "heads": 2, "kv_heads": 1, "vocabulary": 11}


def main() -> None:
    """Every file anew."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from native.tiny_llama import TinyLlama

    FOLDER.mkdir(exist_ok=True)
    words = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [0.0] * 11,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1, 6, 6],
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "a.flags": [True, False],
        "a.flag": True,
        "a.float": 0.5,
    }
    kinds = gguf.GGMLQuantizationType
    models = {
        "plain": TinyLlama(**SMALL, overrides=words),
        "quantized": TinyLlama(**SMALL, weight_type=kinds.Q4_1, vector_type=kinds.F32),
        "half": TinyLlama(**SMALL, weight_type=kinds.F16, vector_type=kinds.F32, tied=True, biases=True),
        "yarn": TinyLlama(**SMALL, weight_type=kinds.Q8_0, scaling="yarn", scaling_factor=4.0, original_context=64),
        "factors": TinyLlama(**SMALL, weight_type=kinds.Q8_0, rope_factors=(1.0,) * 8),
    }
    for name, model in models.items():
        model.write(FOLDER / f"{name}.bin")
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    nested = struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 2) + struct.pack("<IQI", 4, 1, 7) * 2
    (FOLDER / "nested.bin").write_bytes(header + nested)


if __name__ == "__main__":
    main()
