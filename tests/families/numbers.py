"""Functions of float64 arrays."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rms(x: Array, epsilon: float) -> Array:
    """Divided by the root of the mean square of the last axis."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return np.asarray(x * sigmoid(x))


def gelu(x: Array) -> Array:
    """By tanh, as all families here have it."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def xielu(x: Array, alpha_n: float, alpha_p: float, beta: float, epsilon: float) -> Array:
    below = (np.expm1(np.minimum(x, epsilon)) - x) * (beta + softplus(alpha_n)) + beta * x
    return np.asarray(np.where(x > 0, softplus(alpha_p) * x * x + beta * x, below))


def capped(x: Array, cap: float) -> Array:
    """As it is where ``cap`` is 0."""
    return np.asarray(cap * np.tanh(x / cap)) if cap else x
