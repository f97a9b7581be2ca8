"""The sampler's rules in plain Python and float64: what ``src/sampler.h`` says, written to be read.

The engine ``fake`` samples with it, and the native sampler is tested against it. It is slow (milliseconds for a large
vocabulary) and sums in another order than the native one, so a draw within about 1e-6 of the border between two tokens
may fall on the other side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tokenloom.native_ext.engine import BatchError, EngineError, Sampling, TokenLogprobs

_INFINITY = float("inf")
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011): four words of 32 random bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1), a multiple of 2**-53, that decides the token at ``position`` under ``seed``."""
    words = philox4x32((position & _MASK, position >> 32 & _MASK, 0, 0), (seed & _MASK, seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) / 2**53


def validate(sampling: Sampling, vocabulary: int) -> None:
    """Raise BatchError naming the first field out of range, its value and its limit."""

    def require(holds: bool, field: str, limit: str, value: object = None) -> None:
        if not holds:
            raise BatchError(f"{field} is {getattr(sampling, field) if value is None else value}; it must be {limit}")

    for field in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        require(math.isfinite(getattr(sampling, field)), field, "a finite number")
    require(sampling.temperature >= 0, "temperature", "at least 0")
    require(sampling.repetition_penalty > 0, "repetition_penalty", "above 0")
    require(sampling.top_k >= 0, "top_k", "at least 0")
    require(0 < sampling.top_p <= 1, "top_p", "above 0 and at most 1")
    require(0 <= sampling.min_p <= 1, "min_p", "within 0 and 1")
    require(sampling.penalty_window >= -1, "penalty_window", "at least -1")
    require(0 <= sampling.seed < 2**64, "seed", "within 0 and 2**64 - 1")
    if sampling.logprobs is not None:
        require(0 <= sampling.logprobs <= vocabulary, "logprobs", f"within 0 and the vocabulary's {vocabulary}")
    for token, addend in sampling.logit_bias:
        require(
            0 <= token < vocabulary, "logit_bias", f"for tokens within 0 and {vocabulary - 1}", f"for token {token}"
        )
        require(addend < _INFINITY, "logit_bias", "a finite number or -inf", f"{addend} for token {token}")


def adjusted(logits: Sequence[float], tokens: Sequence[int], sampling: Sampling) -> list[float]:
    """The row after logit bias and penalties."""
    row = list(logits)
    for token, addend in sampling.logit_bias:
        row[token] += addend
    window = len(tokens) if sampling.penalty_window == -1 else min(sampling.penalty_window, len(tokens))
    for token, times in Counter(tokens[len(tokens) - window :]).items():
        logit = row[token]
        logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        row[token] = logit - sampling.presence_penalty - sampling.frequency_penalty * times
    return row


def distribution(row: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """The tokens left after temperature, top-k, top-p and min-p, with weights relative to the likeliest's 1.

    ``row`` is an adjusted one; the temperature must be above 0.
    """
    best = max(row)
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    weights = {token: math.exp((row[token] - best) / sampling.temperature) for token in ranked}
    if sampling.top_p < 1:
        goal, kept = sampling.top_p * math.fsum(weights.values()), 0.0
        for token in ranked:
            if kept >= goal:
                del weights[token]
            else:
                kept += weights[token]
    return {token: weight for token, weight in weights.items() if weight >= sampling.min_p and weight > 0}


def sample(logits: Sequence[float], tokens: Sequence[int], position: int, sampling: Sampling) -> int:
    """The token for ``position``, from one row of logits and the sequence that made it.

    Raises EngineError for a row with NaN, +inf or nothing but -inf, BatchError when logit_bias excludes every token.
    """
    if not all(logit < _INFINITY for logit in logits) or max(logits) == -_INFINITY:
        raise EngineError("the row of logits holds NaN, +inf, or nothing but -inf")
    row = adjusted(logits, tokens, sampling)
    best = max(row)
    if best == -_INFINITY:
        raise BatchError("logit_bias excludes every token of the vocabulary; at least 1 must be left")
    if sampling.temperature == 0:
        return row.index(best)
    weights = sorted(distribution(row, sampling).items())
    target, below = uniform(sampling.seed, position) * math.fsum(weight for _, weight in weights), 0.0
    for token, weight in weights:
        below += weight
        if below > target:
            return token
    return weights[-1][0]


def logprobs(logits: Sequence[float], token: int, count: int) -> TokenLogprobs:
    """Of ``token`` and of the ``count`` likeliest, from the row before anything is applied to it."""
    best = max(logits)
    normalizer = best + math.log(math.fsum(math.exp(logit - best) for logit in logits))
    ranked = sorted(range(len(logits)), key=lambda other: (-logits[other], other))[:count]
    return TokenLogprobs(logits[token] - normalizer, tuple((other, logits[other] - normalizer) for other in ranked))
