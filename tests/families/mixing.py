"""Which experts a token goes to, and how much each counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from families.numbers import Array, sigmoid, softmax
from families.rules import Keys, Rules

Chosen = npt.NDArray[np.int64]


def choice(rules: Rules, keys: Keys, scores: Array, bias: Array | float, used: int) -> tuple[Chosen, Array]:
    """Experts and weights (tokens, used), of scores (tokens, experts); ``bias`` counts in choosing only."""
    chance = scores
    if rules.gating != "after":
        chance = sigmoid(scores) if rules.gating == "sigmoid" else softmax(scores)
    choosing: Array = chance + bias
    if groups := keys.get("expert_group_count"):
        choosing = within_groups(choosing.reshape(len(scores), groups, -1), keys["expert_group_used_count"])
    chosen = np.argsort(-choosing, -1, kind="stable")[:, :used]
    weights = np.take_along_axis(chance, chosen, -1)
    if rules.gating == "after":
        weights = softmax(weights)
    if keys.get("expert_weights_norm", False) if rules.weight_keys else rules.normalized:
        weights = weights / weights.sum(-1, keepdims=True)
    if rules.weight_keys:
        weights = weights * (keys.get("expert_weights_scale") or 1.0)
    return chosen, np.asarray(weights)


def within_groups(choosing: Array, used: int) -> Array:
    """(tokens, groups, experts of each) -> (tokens, experts), -inf but in the groups whose two best are worth most."""
    worth = np.sort(choosing, -1)[..., -2:].sum(-1)
    kept = np.argsort(-worth, -1, kind="stable")[:, :used, None]
    out = np.full_like(choosing, -np.inf)
    np.put_along_axis(out, kept, np.take_along_axis(choosing, kept, 1), 1)
    return out.reshape(len(choosing), -1)
