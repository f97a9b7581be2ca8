"""Whole generations are the same, tokens and log-probabilities: whatever else runs, wherever, however often begun anew.

A token's chance depends on the session's seed and its position alone, and its logits on its session's tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.ways import exactly, random_tokens, sequences
from native.tiny_llama import TinyLlama
from quality.models import encode
from tokenloom.native_ext.engine import EngineSettings, Entry, Sampling, TokenLogprobs
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core

KERNELS = core.usable_kernels(emulated=True)
COUNT = 24
PROMPT = 50  # generating crosses a page's end

Generation = list[tuple[int, TokenLogprobs]]

#: One of each kind, and all of them together.
SETTINGS = [
    Sampling(temperature=1.0, seed=1, logprobs=5),
    Sampling(temperature=0.7, top_p=0.9, seed=2, logprobs=5),
    Sampling(temperature=1.3, top_k=20, seed=3, logprobs=5),
    Sampling(temperature=1.0, min_p=0.05, seed=4, logprobs=5),
    Sampling(temperature=1.0, repetition_penalty=1.3, penalty_window=-1, seed=5, logprobs=5),
    Sampling(temperature=0.9, presence_penalty=0.6, frequency_penalty=0.4, seed=6, logprobs=5),
    Sampling(temperature=0.0, repetition_penalty=1.1, logprobs=5),
    Sampling(
        temperature=1.1,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.15,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias=((7, 1.5), (9, float("-inf"))),
        seed=2**64 - 1,
        logprobs=5,
    ),
]


def one(engine: GgmlEngine, prompt: Sequence[int], sampling: Sampling, chunk: int = PROMPT) -> Generation:
    """A generation alone in the engine, its prompt in chunks."""
    with sequences(engine) as new:
        return go_on(engine, [new()], [prompt], [sampling], COUNT, chunk)[0]


def go_on(
    engine: GgmlEngine,
    those: Sequence[int],
    fed: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    count: int,
    chunk: int = PROMPT,
) -> list[Generation]:
    """Append to each sequence, then generate so many, one batch for all."""
    out: list[Generation] = [[] for _ in those]
    last = (len(fed[0]) - 1) // chunk * chunk  # all are of one length
    for at in range(0, last, chunk):
        engine.forward([Entry(s, f[at : at + chunk]) for s, f in zip(those, fed, strict=True)])
    rest = [list(f[last:]) for f in fed]
    for _ in range(count):
        outputs = engine.forward([Entry(s, f, g) for s, f, g in zip(those, rest, samplings, strict=True)])
        for generation, output in zip(out, outputs, strict=True):
            assert output.token is not None
            assert output.logprobs is not None
            generation.append((output.token, output.logprobs))
        rest = [[generation[-1][0]] for generation in out]
    return out


@pytest.fixture(scope="module", params=["tiny Q4_K", "tiny Q8_0", "SmolLM2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    if request.param == "SmolLM2":
        return model_path
    kind = request.param.removeprefix("tiny ")
    tiny = TinyLlama(layers=1, embedding=256, feed_forward=256, heads=4, head_size=64, vocabulary=300)
    return tiny.write_as(tmp_path_factory.mktemp("sampling") / f"{kind}.gguf", kind, encode)


@pytest.fixture(scope="module")
def loaded(model: Path) -> Callable[..., GgmlEngine]:
    def loader(kernels: str = "auto", threads: int = 1) -> GgmlEngine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOKENLOOM_KERNELS", kernels)
            with exactly(threads):
                return load(EngineSettings(model=model, kv_bytes=64 << 20, max_batch_tokens=1024))

    return loader


@pytest.fixture(scope="module")
def engine(loaded: Callable[..., GgmlEngine]) -> GgmlEngine:
    return loaded()


@pytest.fixture(scope="module")
def prompt(engine: GgmlEngine) -> list[int]:
    return random_tokens(engine, 21, PROMPT)


@pytest.fixture(scope="module")
def settings(model: Path, model_path: Path) -> list[Sampling]:
    """Of the real model only some, for the sake of time."""
    return [SETTINGS[1], SETTINGS[5], SETTINGS[7]] if model == model_path else SETTINGS


@pytest.fixture(scope="module")
def expected(engine: GgmlEngine, prompt: list[int], settings: list[Sampling]) -> list[Generation]:
    """Of all settings, each alone."""
    return [one(engine, prompt, sampling) for sampling in settings]


def test_generations_differ(expected: list[Generation], settings: list[Sampling]) -> None:
    """What would make every other test here pass for nothing."""
    assert len({tuple(token for token, _ in generation) for generation in expected}) == len(settings)


def test_together_in_one_batch(
    engine: GgmlEngine, prompt: list[int], expected: list[Generation], settings: list[Sampling]
) -> None:
    with sequences(engine) as new:
        those = [new() for _ in settings]
        assert go_on(engine, those, [prompt] * len(settings), settings, COUNT) == expected


def test_as_clones_of_one_prompt(
    engine: GgmlEngine, prompt: list[int], expected: list[Generation], settings: list[Sampling]
) -> None:
    with sequences(engine) as new:
        root = new()
        engine.forward([Entry(root, prompt)])
        those = [new(root, PROMPT - 1) for _ in settings]
        assert go_on(engine, those, [prompt[-1:]] * len(settings), settings, COUNT) == expected


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_however_the_prompt_is_cut(
    chunk: int, engine: GgmlEngine, prompt: list[int], expected: list[Generation], settings: list[Sampling]
) -> None:
    assert one(engine, prompt, settings[-1], chunk) == expected[-1]


def test_after_rewinding_to_any_token(
    engine: GgmlEngine, prompt: list[int], expected: list[Generation], settings: list[Sampling]
) -> None:
    for sampling, generation in zip(settings[-2:], expected[-2:], strict=True):
        with sequences(engine) as new:
            sequence = new()
            go_on(engine, [sequence], [prompt], [sampling], COUNT)
            for keep in (20, 14, 1):
                engine.rewind(sequence, PROMPT + keep - 1)
                again = go_on(engine, [sequence], [[generation[keep - 1][0]]], [sampling], COUNT - keep)
                assert again == [generation[keep:]]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kernels", KERNELS)
def test_on_every_instruction_set(
    kernels: str,
    threads: int,
    loaded: Callable[..., GgmlEngine],
    prompt: list[int],
    expected: list[Generation],
    settings: list[Sampling],
) -> None:
    """In a new engine, and taken up from the log in the middle."""
    if kernels == "portable" and len(settings) < len(SETTINGS):
        settings, expected = settings[-1:], expected[-1:]  # the real model: slow
    engine = loaded(kernels, threads)
    with sequences(engine) as new:
        middle = COUNT // 2
        logs = [prompt + [token for token, _ in generation[:middle]] for generation in expected]
        rest = go_on(engine, [new() for _ in settings], logs, settings, COUNT - middle, chunk=200)
        assert rest == [generation[middle:] for generation in expected]
