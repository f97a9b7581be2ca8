"""Merges made of scores join exactly as scores do, step by step."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from tokenloom.worker.text import Tokenizer
from tokenloom.worker.text.score_merger import ScoreMerger
from tokenloom.worker.text.spm import merges_from_scores


def naive(text: str, tokens: dict[str, int], scores: list[float]) -> list[int]:
    """The rule as it is written: join the best pair, the leftmost of equals, until there is none."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[tokens[a + b]], at) for at, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in tokens
        ]
        if not pairs:
            return [tokens[symbol] for symbol in symbols]
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


longer = st.lists(st.text("abc", min_size=2, max_size=7), unique=True, max_size=30)


@given(words=longer, order=st.randoms(use_true_random=False), text=st.text("abc", max_size=40))
@settings(max_examples=300, deadline=None)
def test_ranked_merges_join_what_scores_join(words: list[str], order: Any, text: str) -> None:
    tokens = {token: index for index, token in enumerate(["a", "b", "c", *words])}
    scores = [-float(rank) for rank in order.sample(range(len(tokens)), len(tokens))]
    merges = merges_from_scores(tokens, scores)
    assert merges is not None
    expected = naive(text, tokens, scores)
    assert Backend(BPE(tokens, merges)).encode(text).ids == expected
    assert ScoreMerger(tokens, scores, [0] * 256).encode(text) == expected


@given(words=longer, scores=st.lists(st.integers(0, 2), min_size=40, max_size=40), text=st.text("abc", max_size=40))
@settings(max_examples=300, deadline=None)
def test_tied_scores_join_leftmost_first(words: list[str], scores: list[int], text: str) -> None:
    tokens = {token: index for index, token in enumerate(["a", "b", "c", *words])}
    ranks = [float(score) for score in scores]
    assert ScoreMerger(tokens, ranks, [0] * 256).encode(text) == naive(text, tokens, ranks)


def test_scores_that_ranks_cannot_express_are_noticed() -> None:
    assert merges_from_scores({"a": 0, "b": 1, "ab": 2, "ba": 3}, [0, 0, -1, -1]) is None
    assert merges_from_scores({"a": 0, "ab": 1}, [0, -1]) is None  # "b" is no token
    assert merges_from_scores({"a": 0, "b": 1, "ab": 2}, [0, 0, -1]) == [("a", "b")]


def test_a_control_token_is_never_joined_from_pieces(score_metadata: dict[str, Any]) -> None:
    # llama.cpp joins "<" and "s>" into the bos token here, from a user's text.
    tokens = [*score_metadata["tokenizer.ggml.tokens"], "s>"]
    scores = [*score_metadata["tokenizer.ggml.scores"], -5000.0]
    types = [*score_metadata["tokenizer.ggml.token_type"], 1]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types}
    tokenizer = Tokenizer.from_metadata({**score_metadata, **changed})
    ids = tokenizer.encode("<s>", continues=True)
    assert tokenizer.bos not in ids
    assert ids == [tokenizer.token_id("<"), len(tokens) - 1]


def test_characters_without_a_token_are_spelled_in_bytes(score: Tokenizer) -> None:
    ids = score.encode("\U0001f9ff")
    assert [score.token_bytes(token) for token in ids[-4:]] == [b"\xf0", b"\x9f", b"\xa7", b"\xbf"]
    assert score.decode(ids, strip_space=True) == "\U0001f9ff"
