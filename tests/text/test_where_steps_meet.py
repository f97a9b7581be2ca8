"""Texts of steps that follow each other: whole characters, and together exactly the text of the log."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from characters import BEGINNINGS, cut
from tokenloom.schemas.log import GENERATED
from tokenloom.worker.text import Detokenizer, unfinished
from vocabularies import NAMES, TEXTS, Vocabulary, three_bytes, vocabulary


@pytest.fixture(scope="session", params=NAMES)
def voice(request: pytest.FixtureRequest, model_path: Path) -> Vocabulary:
    return vocabulary(request.param, model_path)


def steps(
    voice: Vocabulary, pieces: Iterable[list[int]], words: Iterable[int] = (), stops: Iterable[str] = ()
) -> list[tuple[str, int]]:
    """Text and pending bytes of steps that generate these tokens behind the log ``words``, one after another.

    Nothing is handed from one to the next but the log.
    """
    log, said = array("I", words), []
    for piece in pieces:
        stream = voice.texts.stream(tuple(stops), voice.texts.held(log, len(log)))
        text, stopped = "", False
        for token in piece:
            if not stopped:
                new, stopped = stream.push(token)
                text += new
                log.append(token | GENERATED)
        said.append((text if stopped else text + stream.flush(), stream.pending))
    return said


@pytest.mark.parametrize("text", TEXTS)
def test_two_steps_cut_at_any_token_say_the_whole_text(voice: Vocabulary, text: str) -> None:
    tokens = voice.tokens(text)
    for at in range(len(tokens) + 1):
        first, second = steps(voice, [tokens[:at], tokens[at:]])
        begun, held = cut(voice.spelled(tokens[:at]))
        assert first == (begun, len(held))
        assert second == (text[len(begun) :], 0)


def test_steps_of_one_token_each_say_the_whole_text(voice: Vocabulary) -> None:
    text = "".join(TEXTS)
    said = steps(voice, [[token] for token in voice.tokens(text)])
    assert "".join(piece for piece, _ in said) == text
    assert {pending for _, pending in said} == {0, 1, 2, 3}
    assert said[-1][1] == 0


def test_the_texts_hold_what_is_hard_to_cut(voice: Vocabulary) -> None:
    """Characters of several tokens; where the vocabulary has such, a token that is part of two characters."""
    spellings = [voice.spelled([token]) for token in voice.tokens("".join(TEXTS))]
    assert any(cut(data)[1] for data in spellings)
    parts_of_two = [data for data in spellings if 0x80 <= data[0] < 0xC0 and cut(data)[1]]
    assert bool(parts_of_two) == (voice.name in ("byte_level", "three_bytes"))
    assert any("\u200d" in text for text in TEXTS), "emoji of several code points"


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_tokens_come_the_texts_are_that_of_the_log(voice: Vocabulary, data: st.DataObject) -> None:
    """Bytes that are no character and special tokens among them, cut anywhere."""
    broken = [0x61, 0x80, 0x9F, 0xA0, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF]
    bytes_alone = st.sampled_from([token for token in map(voice.find_byte, broken) if token is not None])
    token = st.one_of(bytes_alone, bytes_alone, st.integers(0, voice.tokenizer.vocab_size - 1))
    tokens = data.draw(st.lists(token, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    said = steps(voice, [tokens[a:b] for a, b in pairwise([0, *cuts, len(tokens)])])
    text, held = cut(voice.spelled(tokens))
    assert "".join(piece for piece, _ in said) == text
    assert said[-1][1] == len(held)
    whole = voice.tokenizer.decode(tokens)
    assert whole == text + "\ufffd" * bool(held)


def test_what_is_appended_begins_and_finishes_no_character(voice: Vocabulary) -> None:
    first, second = map(voice.byte, "é".encode())
    assert steps(voice, [[second]], [first | GENERATED]) == [("é", 0)]
    assert steps(voice, [[second]], [first]) == [("\ufffd", 0)], "an appended byte is not continued"
    assert steps(voice, [[second]], [first | GENERATED, voice.byte(0x61)]) == [("\ufffd", 0)]
    assert steps(voice, [[]], [first | GENERATED, second]) == [("", 0)]


def test_special_tokens_stand_in_no_character(voice: Vocabulary) -> None:
    first, second = map(voice.byte, "é".encode())
    end = min(voice.tokenizer.stop_tokens)
    assert steps(voice, [[end], [end, end], [second]], [first | GENERATED]) == [("", 1), ("", 1), ("é", 0)]


@pytest.mark.parametrize("at", range(1, 9))
def test_a_stop_string_is_found_if_the_step_says_all_of_it(voice: Vocabulary, at: int) -> None:
    """A stop string of two characters, cut at each of its bytes: in its first one, all of it is the second step's."""
    data = "a\u4e16\U0001f469z".encode()
    tokens = [voice.byte(byte) for byte in data]
    (first, pending), (second, _) = steps(voice, [tokens[:at], tokens[at:]], stops=["\u4e16\U0001f469"])
    assert pending == len(cut(data[:at])[1])
    if at < 4:
        assert (first, second) == ("a", "")
    elif at < 8:
        assert (first, second) == ("a\u4e16", "\U0001f469z")
    else:
        assert (first, second) == ("a", "z")


def test_what_a_token_begins_behind_a_stop_string_is_the_next_steps() -> None:
    voice = three_bytes(["xyENDé!?"])
    tokens = voice.tokens("xyENDé!?")
    assert [voice.spelled([token]) for token in tokens] == [b"xyE", b"ND\xc3", b"\xa9!?"]
    assert steps(voice, [tokens, tokens[2:]], stops=["END"]) == [("xy", 1), ("é!?", 0)]


@pytest.mark.parametrize(
    ("held", "token", "said", "left"),
    [
        ("", "61", "", ""),
        ("", "e4", "", "e4"),
        ("c3", "a9", "", ""),  # it finishes the character, which is then no text either
        ("c3", "61", "\ufffd", ""),
        ("c3", "c3", "\ufffd", "c3"),
        ("f09f", "98", "", "f09f98"),
        ("e0", "80", "\ufffd", ""),
        ("efbf", "bd", "", ""),  # the character U+FFFD itself
    ],
)
def test_a_token_that_is_no_text_breaks_off_what_it_does_not_go_on_with(
    voice: Vocabulary, held: str, token: str, said: str, left: str
) -> None:
    detokenizer = Detokenizer(voice.tokenizer, held=bytes.fromhex(held))
    assert detokenizer.skip(voice.byte(int(token, 16))) == said
    assert detokenizer.held == bytes.fromhex(left)


def test_the_last_three_bytes_say_in_which_character_they_end() -> None:
    """All that four bytes can be, by the kinds that UTF-8 knows."""
    kinds = [0x61, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5]
    for size in range(5):
        for data in map(bytes, product(kinds, repeat=size)):
            assert unfinished(data) == cut(data)[1]
    assert {len(beginning) for beginning in BEGINNINGS} == {1, 2, 3}
