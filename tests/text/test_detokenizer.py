"""Text of tokens while they come: whole characters only, and in the end exactly the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.worker.text import Detokenizer, Tokenizer


def pieces(tokenizer: Tokenizer, tokens: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*map(detokenizer.push, tokens), "\ufffd" * bool(detokenizer.held)]


def byte_tokens(tokenizer: Tokenizer) -> list[int]:
    return [
        i
        for i in range(tokenizer.vocab_size)
        if len(tokenizer.token_bytes(i)) == 1 and tokenizer.token_bytes(i)[0] > 127
    ]


def test_half_characters_are_held_back(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("a👨‍👩‍👧z")
    parts = pieces(smollm2, tokens)
    assert "".join(parts) == "a👨‍👩‍👧z"
    assert "\ufffd" not in "".join(parts)
    assert "" in parts[:-1]  # it did hold something back


def test_what_can_no_longer_be_a_character_comes_out_at_once(score: Tokenizer) -> None:
    start, letter = score.token_id("<0xF0>"), score.token_id("a")
    assert start is not None
    assert letter is not None
    detokenizer = Detokenizer(score)
    assert detokenizer.push(start) == ""
    assert detokenizer.push(letter) == "\ufffda"
    assert detokenizer.push(start) == ""
    assert detokenizer.held == b"\xf0"


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_pieces_join_to_the_decoded_whole(smollm2: Tokenizer, score: Tokenizer, data: st.DataObject) -> None:
    tokenizer = data.draw(st.sampled_from([smollm2, score]))
    anything = st.integers(0, tokenizer.vocab_size - 1)
    tokens = data.draw(st.lists(st.one_of(anything, st.sampled_from(byte_tokens(tokenizer))), max_size=40))
    for skip in (True, False):
        parts = pieces(tokenizer, tokens, skip_special=skip)
        assert "".join(parts) == tokenizer.decode(tokens, skip_special=skip)


@given(text=st.text(), cut=st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_what_is_held_is_all_of_the_state(score: Tokenizer, text: str, cut: int) -> None:
    tokens = score.encode(text)
    first, again = Detokenizer(score), Detokenizer(score)
    for token in tokens[:cut]:
        first.push(token)
        again.push(token)
    other = Detokenizer(score, held=first.held)
    said = [*map(first.push, tokens[cut:]), first.held]
    assert said == [*map(again.push, tokens[cut:]), again.held]
    assert said == [*map(other.push, tokens[cut:]), other.held]


def test_special_tokens_are_no_text(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("Hi<|im_end|>", parse_special=True)
    assert "".join(pieces(smollm2, tokens)) == "Hi"
    assert "".join(pieces(smollm2, tokens, skip_special=False)) == "Hi<|im_end|>"
