"""How tests drive an engine: prompts, prefill in chunks as a worker does it, generating, and comparing bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tokenloom.native_ext.engine import Engine, Entry, Sampling

GREEDY = Sampling(temperature=0.0)
Row = npt.NDArray[np.float32]
#: Loads an engine by name: ggml, ggml-int8, fake, single-ggml, single-fake.
Load = Callable[..., Engine]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that every vocabulary here has, other ones for every seed."""
    return [(seed * 31 + index * index * 7 + index * 13) % 200 + 20 for index in range(length)]


def feed(
    engine: Engine, sequence: int, tokens: Sequence[int], sampling: Sampling | None = None
) -> tuple[int | None, Row]:
    """Append in chunks of at most the batch's budget; the sampled token and the logits of the last row."""
    size = engine.geometry.max_batch_tokens
    for begin in range(0, len(tokens), size):
        chunk = tokens[begin : begin + size]
        last = begin + size >= len(tokens)
        entry = Entry(sequence, chunk, sampling if last else None, "last" if last else "none")
        (output,) = engine.forward([entry])
    return output.token, output.logits[0]


def generate(
    engine: Engine, sequence: int, tokens: Sequence[int], count: int, sampling: Sampling = GREEDY
) -> tuple[list[int], Row]:
    """Append ``tokens``, then generate ``count``: those, and the logits the last one was drawn from.

    The last one generated is not appended.
    """
    token, row = feed(engine, sequence, tokens, sampling)
    generated = [token]
    while len(generated) < count:
        token, row = feed(engine, sequence, [token] if token is not None else [], sampling)
        generated.append(token)
    assert all(token is not None for token in generated)
    return [token for token in generated if token is not None], row


def alone(engine: Engine, tokens: Sequence[int], count: int, sampling: Sampling = GREEDY) -> tuple[list[int], Row]:
    """``generate`` in a sequence of its own that is gone afterwards."""
    sequence = engine.new()
    try:
        return generate(engine, sequence, tokens, count, sampling)
    finally:
        engine.remove(sequence)


def same_bits(one: Row, other: Row) -> bool:
    """Equal bit for bit."""
    return one.shape == other.shape and bool(np.array_equal(one.view(np.int32), other.view(np.int32)))
