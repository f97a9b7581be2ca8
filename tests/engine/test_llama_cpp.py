"""The engine agrees with llama.cpp on a real model: SmolLM2-135M as float16 and as it comes, in Q4_1.

llama.cpp's server gives log-probabilities, not logits: here for the whole vocabulary at the ends of the prompts, and
for the 2,000 most likely tokens elsewhere. They differ from logits by one number a row, so where every logit of a row
is within d, every log-probability is within 2 d; the limit of 0.15 for logits is applied to them all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from engine.llama_cpp_peer import Answer, Question, answers
from tokenloom.native_ext.engine import EngineSettings, Entry, Sampling
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.gguf import read_metadata

Logprobs = npt.NDArray[np.float64]

TEXTS = [
    "The capital of France is",
    "Once upon a time there was a small village by the sea, where",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Water boils at a temperature of",
    "The three laws of thermodynamics can be summarized as follows:\n1.",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "import numpy as np\n\nx = np.arange(10)\nprint(",
    "Q: What is the largest planet of the solar system?\nA:",
    "In 1969, the first humans landed on the Moon. The mission was called",
    "To make an omelette you need two eggs, a little butter and",
    "The French for 'good morning' is",
    "Photosynthesis is the process by which plants",
]
STEPS = 64
SAMPLED_STEPS = 40
TOP = 2000
STOPS = {0, 2}  # end of text, end of a chat message


@dataclass(frozen=True)
class Peer:
    """What llama.cpp answered. ``prefixes[i][k]`` is what it gave for the first k tokens of prompt i, every third k."""

    prompts: list[list[int]]
    greedy: list[Answer]
    prefixes: list[dict[int, Answer]]
    sampled: list[Answer]  # of the Q4_1 file


def encode(metadata: dict[str, Any], text: str) -> list[int]:
    """Tokens of some text: the longest that fits, from left to right (any will do here, not only a tokenizer's)."""
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    rest, out = text.replace(" ", "Ġ").replace("\n", "Ċ"), []
    while rest:
        size = max(n for n in range(1, len(rest) + 1) if rest[:n] in ids)
        out.append(ids[rest[:size]])
        rest = rest[size:]
    return out


def write_float16(source: Path, target: Path) -> None:
    """The same model with every matrix as float16."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, data.astype(np.float16) if data.ndim > 1 else data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def float16_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float16") / "model.gguf"
    write_float16(model_path, path)
    return path


@pytest.fixture(scope="module")
def peer(model_path: Path, float16_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    metadata = read_metadata(model_path)
    prompts = [encode(metadata, text) for text in TEXTS]
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    greedy = [Question(prompt, STEPS) for prompt in prompts]
    lengths = [range(len(prompt), 0, -3) for prompt in prompts]
    prefixes = [
        Question(prompt[:k], top=vocabulary if k == len(prompt) else TOP)
        for prompt, some in zip(prompts, lengths, strict=True)
        for k in some
    ]
    sampled = [Question(prompt, SAMPLED_STEPS, TOP, temperature=1.0, seed=i) for i, prompt in enumerate(prompts)]
    folder = tmp_path_factory.mktemp("llama_cpp")
    replies = answers(folder, {float16_path: [*greedy, *prefixes], model_path: sampled})
    rest = iter(replies[float16_path][len(greedy) :])
    return Peer(
        prompts=prompts,
        greedy=replies[float16_path][: len(greedy)],
        prefixes=[{k: next(rest) for k in some} for some in lengths],
        sampled=replies[model_path],
    )


@pytest.fixture(scope="module")
def float16(float16_path: Path) -> GgmlEngine:
    return load(EngineSettings(model=float16_path, threads=1))


@pytest.fixture(scope="module")
def quantized(model_path: Path) -> GgmlEngine:
    return load(EngineSettings(model=model_path, threads=1))


def rows(engine: GgmlEngine, tokens: list[int], first: int = 0) -> Logprobs:
    """Log-probabilities (tokens - first, vocabulary) after each token of a fresh sequence from token ``first`` on."""
    sequence = engine.new()
    if first:
        engine.forward([Entry(sequence, tokens[:first])])
    logits = engine.forward([Entry(sequence, tokens[first:], logits="all")])[0].logits
    engine.remove(sequence)
    logits -= logits.max(1, keepdims=True)
    out: Logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True, dtype=np.float64))
    return out


def test_greedy_continuations_are_token_for_token_those_of_llama_cpp(peer: Peer, float16: GgmlEngine) -> None:
    sequences = [float16.new() for _ in peer.prompts]
    fed = peer.prompts
    histories: list[list[int]] = [[] for _ in peer.prompts]
    margins: list[list[float]] = [[] for _ in peer.prompts]
    for _ in range(STEPS):
        batch = [
            Entry(s, tokens, sample=Sampling(temperature=0.0), logits="last")
            for s, tokens in zip(sequences, fed, strict=True)
        ]
        outputs = float16.forward(batch)
        for output, history, margin in zip(outputs, histories, margins, strict=True):
            assert output.token is not None
            history.append(output.token)
            second, best = np.partition(output.logits[0], -2)[-2:]
            margin.append(float(best - second))
        fed = [[history[-1]] for history in histories]

    equal = 0
    for prompt, history, margin, answer in zip(TEXTS, histories, margins, peer.greedy, strict=True):
        theirs = answer.tokens.tolist()
        assert len(theirs) == STEPS or theirs[-1] in STOPS
        parted = next((i for i, token in enumerate(theirs) if token != history[i]), None)
        if parted is None:
            equal += 1
        else:
            assert margin[parted] < 0.1, f"{prompt!r} parts from llama.cpp at token {parted}"
    assert equal >= len(TEXTS) // 2  # close calls are rare; else something is off


def test_logits_of_the_prompts_are_those_of_llama_cpp(peer: Peer, float16: GgmlEngine) -> None:
    largest = 0.0
    for prompt, theirs in zip(peer.prompts, peer.prefixes, strict=True):
        ours = rows(float16, prompt)
        for k, answer in theirs.items():
            largest = max(largest, float(np.abs(ours[k - 1][answer.ids[0]] - answer.logprobs[0]).max()))
    assert largest < 0.15


def test_quantized_weights_lose_no_more_than_in_llama_cpp(
    peer: Peer, float16: GgmlEngine, quantized: GgmlEngine
) -> None:
    """Mean KL divergence from the float16 model over text that llama.cpp sampled from the Q4_1 file.

    Of the vocabulary llama.cpp names 2,000 tokens a row; all others are taken together as one, for both alike.
    """

    def divergence(true: Logprobs, other: Logprobs) -> float:
        """From log-probabilities of the named tokens."""
        rest = [np.log(max(1e-9, 1 - np.exp(p).sum())) for p in (true, other)]
        p, q = np.append(true, rest[0]), np.append(other, rest[1])
        return float((np.exp(p) * (p - q)).sum())

    ours, theirs = [], []
    for prompt, answer in zip(peer.prompts, peer.sampled, strict=True):
        text = [*prompt, *answer.tokens.tolist()[:-1]]
        true, here = (rows(engine, text, len(prompt) - 1) for engine in (float16, quantized))
        for i, named in enumerate(answer.ids):
            ours.append(divergence(true[i][named], here[i][named]))
            theirs.append(divergence(true[i][named], answer.logprobs[i].astype(np.float64)))
    assert len(ours) > 400
    assert 0.001 < np.mean(theirs) < 0.05  # else the comparison is not what it is meant to be
    assert np.mean(ours) <= 1.1 * np.mean(theirs)
