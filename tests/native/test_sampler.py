"""The sampler's edge cases: ties, excluded tokens, extreme settings, broken rows, and refusals that name the field."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tokenloom.native_ext._core import sample as native_sample
from tokenloom.native_ext._core import validate_sampling
from tokenloom.native_ext.engine import BatchError, EngineError, Sampling

Row = npt.NDArray[np.float32]
GREEDY = Sampling(temperature=0.0)
INFINITY = math.inf


def row(*logits: float) -> Row:
    return np.array(logits, dtype=np.float32)


def noise(size: int = 1000, seed: int = 0, scale: float = 3.0) -> Row:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def drawn(logits: Row, sampling: Sampling, count: int = 200, tokens: tuple[int, ...] = ()) -> set[int]:
    return {native_sample(logits, list(tokens), position, sampling)[0] for position in range(count)}


def test_greedy_takes_the_highest_logit() -> None:
    for seed in range(20):
        logits = noise(49152, seed)
        assert native_sample(logits, [], 0, GREEDY)[0] == int(np.argmax(logits))


@pytest.mark.parametrize("places", [(0, 999), (63, 64), (5, 6), (500, 700), (998, 999)])
def test_greedy_takes_the_lowest_id_among_equals(places: tuple[int, int]) -> None:
    logits = noise()
    logits[list(places)] = 50
    assert native_sample(logits, [], 0, GREEDY)[0] == places[0]
    assert native_sample(-np.abs(logits) * 0, [], 0, GREEDY)[0] == 0  # every value is -0.0


def test_top_k_of_one_equals_greedy() -> None:
    for seed in range(50):
        logits = noise(seed=seed)
        assert drawn(logits, Sampling(top_k=1, temperature=5.0), 5) == {int(np.argmax(logits))}
    assert drawn(row(1, 3, 3, 2), Sampling(top_k=1)) == {1}


def test_a_tiny_top_p_equals_greedy() -> None:
    for top_p in (1e-6, 1e-300, 5e-324):
        assert drawn(row(1, 3, 3, 2), Sampling(top_p=top_p)) == {1}


def test_a_tiny_temperature_equals_greedy_up_to_equals() -> None:
    for temperature in (1e-30, 1e-300, 5e-324):
        assert drawn(noise(), Sampling(temperature=temperature), 20) == {int(np.argmax(noise()))}
        assert drawn(row(1, 3, 3, 2), Sampling(temperature=temperature)) == {1, 2}


def test_a_huge_temperature_reaches_every_token() -> None:
    assert drawn(row(1, 30, 3, 2), Sampling(temperature=1e300)) == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 100, 1000])
def test_top_k_keeps_the_k_likeliest_and_lower_ids_among_equals(size: int) -> None:
    logits = np.round(noise(size, size, 1.0))  # many ties
    for k in {1, 2, 3, size // 2, size - 1, size, size + 5} - {0}:
        ranked = sorted(range(size), key=lambda token: (-logits[token], token))
        assert drawn(logits, Sampling(top_k=k, temperature=1e6), 20 * size) <= set(ranked[:k])
        listed = native_sample(logits, [], 0, replace(GREEDY, logprobs=min(k, size)))[1][1]
        assert [token for token, _ in listed] == ranked[:k]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = row(*np.log([0.1, 0.4, 0.3, 0.2]))
    assert drawn(logits, Sampling(top_p=0.39)) == {1}
    assert drawn(logits, Sampling(top_p=0.41)) == {1, 2}
    assert drawn(logits, Sampling(top_p=0.69)) == {1, 2}
    assert drawn(logits, Sampling(top_p=0.71)) == {1, 2, 3}
    assert drawn(logits, Sampling(top_p=0.91)) == {0, 1, 2, 3}
    assert drawn(row(*[0.0] * 200), Sampling(top_p=0.5), 5000) == set(range(100))


def test_top_p_works_on_what_top_k_left() -> None:
    logits = row(*np.log([0.4, 0.3, 0.2, 0.1]))
    assert drawn(logits, Sampling(top_p=0.55)) == {0, 1}
    assert drawn(logits, Sampling(top_k=2, top_p=0.55)) == {0}  # 0.4 of 0.7 is 0.571


def test_min_p_keeps_tokens_likely_enough_beside_the_best() -> None:
    logits = row(*np.log([0.5, 0.26, 0.14, 0.1]))
    assert drawn(logits, Sampling(min_p=0.5)) == {0, 1}
    assert drawn(logits, Sampling(min_p=0.25)) == {0, 1, 2}
    assert drawn(logits, Sampling(min_p=1.0)) == {0}


def test_all_excluded_but_one() -> None:
    logits = np.full(300, -INFINITY, dtype=np.float32)
    logits[217] = -1e30
    settings = [
        GREEDY,
        Sampling(),
        Sampling(top_k=5),
        Sampling(top_p=0.1),
        Sampling(min_p=0.3),
        Sampling(temperature=9.0),
    ]
    for sampling in settings:
        assert drawn(logits, replace(sampling, logprobs=2), 20) == {217}
    token, (chosen, top) = native_sample(logits, [], 0, replace(GREEDY, logprobs=2))
    assert (token, chosen, top) == (217, 0.0, ((217, 0.0), (0, -INFINITY)))


def test_bias_moves_excludes_and_adds_up() -> None:
    logits = row(1, 2, 3)
    assert native_sample(logits, [], 0, replace(GREEDY, logit_bias=((0, 2.5),)))[0] == 0
    assert native_sample(logits, [], 0, replace(GREEDY, logit_bias=((0, 1.2), (0, 1.2))))[0] == 0
    assert drawn(logits, Sampling(temperature=100.0, logit_bias=((1, -INFINITY),))) == {0, 2}
    assert native_sample(logits, [], 0, replace(GREEDY, logit_bias=((0, 1e300),)))[0] == 0
    assert logits.tolist() == [1, 2, 3]
    with pytest.raises(BatchError, match="logit_bias excludes every token"):
        native_sample(logits, [], 0, replace(GREEDY, logit_bias=tuple((token, -INFINITY) for token in range(3))))


def test_penalties_by_hand() -> None:
    logits = row(4, -1, 3, 2)
    tokens = [0, 0, 1, 3]
    cases: list[tuple[dict[str, Any], list[float]]] = [
        ({"repetition_penalty": 2.0}, [2, -2, 3, 1]),
        ({"presence_penalty": 1.5}, [2.5, -2.5, 3, 0.5]),
        ({"frequency_penalty": 1.5}, [1, -2.5, 3, 0.5]),
        ({"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}, [1, -2.75, 3, 0.25]),
        ({"repetition_penalty": 2.0, "penalty_window": 2}, [4, -2, 3, 1]),
        ({"repetition_penalty": 2.0, "penalty_window": 0}, [4, -1, 3, 2]),
        ({"frequency_penalty": 1.5, "penalty_window": 3}, [2.5, -2.5, 3, 0.5]),
        ({"frequency_penalty": 1.5, "penalty_window": -1}, [1, -2.5, 3, 0.5]),
        ({"repetition_penalty": 2.0, "logit_bias": ((1, 3.0),)}, [2, 1, 3, 1]),
    ]
    for settings, expected in cases:
        # A bias applied before would be penalized too, so read the row back through draws at equal odds: the token
        # chosen greedily when all others are excluded cannot tell, but a comparison with a known logit can.
        order = sorted(range(4), key=lambda token: -expected[token])
        chosen = native_sample(logits, tokens, 4, Sampling(temperature=0.0, **settings))[0]
        assert chosen == order[0], settings
        shares = np.exp(np.array(expected) - max(expected))
        shares /= shares.sum()
        draws = [native_sample(logits, tokens, position, Sampling(**settings))[0] for position in range(4000)]
        assert np.abs(np.bincount(draws, minlength=4) / 4000 - shares).max() < 0.03, settings


def test_the_default_window_is_the_last_64_tokens() -> None:
    logits = row(1.0, 0.9)
    assert native_sample(logits, [0] + [1] * 64, 65, replace(GREEDY, repetition_penalty=2.0))[0] == 0
    assert native_sample(logits, [0] + [1] * 63, 64, replace(GREEDY, repetition_penalty=2.0))[0] == 0
    assert native_sample(logits, [0] * 64, 64, replace(GREEDY, repetition_penalty=2.0))[0] == 1


def test_extreme_penalties_stay_numbers() -> None:
    logits = row(3e38, -3e38, 1, -INFINITY)
    extremes = [
        Sampling(repetition_penalty=1e-300),
        Sampling(presence_penalty=1e308),
        Sampling(frequency_penalty=-1e308),
        Sampling(repetition_penalty=1e300, presence_penalty=-1e308, frequency_penalty=1e308),
    ]
    for sampling in extremes:
        assert drawn(logits, sampling, 20, (0, 1, 2, 3)) <= {0, 1, 2}


def test_logprobs_come_from_the_raw_row() -> None:
    logits = noise(2000)
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    settings = replace(GREEDY, logprobs=5, logit_bias=((7, 100.0),), repetition_penalty=3.0)
    token, (chosen, top) = native_sample(logits, [int(np.argmax(logits))], 1, settings)
    assert token == 7
    assert chosen == pytest.approx(exact[7], abs=1e-6)
    best = np.argsort(-exact, kind="stable")[:5]
    assert [other for other, _ in top] == best.tolist()
    assert [value for _, value in top] == pytest.approx(exact[best], abs=1e-6)
    assert native_sample(logits, [], 0, replace(GREEDY, logprobs=0))[1][1] == ()
    assert native_sample(logits, [], 0, GREEDY)[1] is None
    assert len(native_sample(logits, [], 0, replace(GREEDY, logprobs=2000))[1][1]) == 2000


@pytest.mark.parametrize("place", [0, 63, 64, 99])
@pytest.mark.parametrize("bad", [math.nan, INFINITY])
def test_a_row_with_nan_or_infinity_is_an_error_that_says_where(place: int, bad: float) -> None:
    logits = noise(100)
    logits[place] = bad
    for sampling in (GREEDY, Sampling(), Sampling(top_k=3), Sampling(logit_bias=((place, -INFINITY),))):
        with pytest.raises(EngineError, match=f"the logit of token {place} is -?(nan|inf)") as caught:
            native_sample(logits, [], 0, sampling)
        assert not isinstance(caught.value, BatchError)


def test_a_row_of_nothing_but_excluded_tokens_is_an_error() -> None:
    with pytest.raises(EngineError, match="every logit of the row is -inf"):
        native_sample(np.full(70, -INFINITY, dtype=np.float32), [], 0, GREEDY)
    with pytest.raises(EngineError, match="empty"):
        native_sample(row(), [], 0, GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.nan}, "temperature is -?nan"),
        ({"temperature": INFINITY}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": None}, "temperature is None"),
        ({"top_k": -1}, "top_k is -1; it must be at least 0"),
        ({"top_k": 1.5}, "top_k is 1.5; it must be an integer"),
        ({"top_k": 2**70}, "top_k is 1180591620717411303424"),
        ({"top_p": 0.0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is -?nan"),
        ({"min_p": -0.1}, "min_p is -0.1; it must be within 0 and 1"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0; it must be a finite number above 0"),
        ({"repetition_penalty": INFINITY}, "repetition_penalty is inf"),
        ({"presence_penalty": math.nan}, "presence_penalty is -?nan"),
        ({"frequency_penalty": INFINITY}, "frequency_penalty is inf"),
        ({"penalty_window": -2}, "penalty_window is -2; it must be at least -1"),
        ({"logit_bias": ((50, 1.0),)}, "logit_bias is for token 50; it must be for tokens within 0 and 49"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias is for token -1"),
        ({"logit_bias": ((3, INFINITY),)}, "logit_bias is inf for token 3; it must be a finite number or -inf"),
        ({"logit_bias": ((3, math.nan),)}, "logit_bias is -?nan for token 3"),
        ({"logit_bias": (3,)}, "logit_bias is "),
        ({"logprobs": 51}, "logprobs is 51; it must be within 0 and the vocabulary's 50"),
        ({"logprobs": -1}, "logprobs is -1; it must be at least 0, or None"),
        ({"seed": -1}, "seed is -1; it must be an integer within 0 and 2"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
    ],
)
def test_bad_settings_are_refused_by_name_value_and_limit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        validate_sampling(Sampling(**settings), 50)
    with pytest.raises(BatchError, match=message):
        native_sample(noise(50), [], 0, Sampling(**settings))


def test_settings_at_their_limits_are_accepted() -> None:
    settings_at_limits: list[dict[str, Any]] = [
        {"top_p": 1.0, "min_p": 1.0, "top_k": 2**62},
        {"seed": 2**64 - 1, "logprobs": 50, "penalty_window": -1},
        {"temperature": 1, "repetition_penalty": 1e-300, "logit_bias": [[49, -INFINITY], (0, -5)]},
    ]
    for settings in settings_at_limits:
        validate_sampling(Sampling(**settings), 50)
        token, _ = native_sample(noise(50), [], 0, Sampling(**settings))
        assert token in range(49 if "logit_bias" in settings else 50)


def test_a_sequence_with_a_token_outside_the_vocabulary_is_refused() -> None:
    for token in (50, -1):
        with pytest.raises(BatchError, match=f"the sequence holds token {token}; it must be within 0 and 49"):
            native_sample(noise(50), [3, token], 2, Sampling(repetition_penalty=1.1))
    before = native_sample(noise(50), [3], 2, Sampling(repetition_penalty=1.1, temperature=0.0))
    assert native_sample(noise(50), [3], 2, Sampling(repetition_penalty=1.1, temperature=0.0)) == before
