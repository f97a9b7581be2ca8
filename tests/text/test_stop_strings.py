"""Stop strings: the rule, and that it does not depend on how the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenloom.worker.text import StopStrings, TextError


def run(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    """All the text emitted, and the stop string found."""
    matcher = StopStrings(stops)
    emitted = ""
    for part in parts:
        result = matcher.push(part)
        emitted += result.text
        if result.stopped:
            return emitted, result.stop
    return emitted + matcher.flush(), None


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    """The earliest end; there, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return [*parts, text[at:]]


@given(
    stops=st.lists(st.text("ab.", min_size=1, max_size=5), max_size=5),
    text=st.text("ab.", max_size=40),
    sizes=st.lists(st.integers(0, 6), max_size=40),
)
@settings(max_examples=500, deadline=None)
def test_any_cut_gives_what_a_search_of_the_whole_text_gives(stops: list[str], text: str, sizes: list[int]) -> None:
    expected = naive(stops, text)
    assert run(stops, cut(text, sizes)) == expected
    assert run(stops, list(text)) == expected
    assert run(stops, [text]) == expected


@given(stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4), text=st.text("abc", max_size=20))
@settings(max_examples=200, deadline=None)
def test_only_the_beginning_of_a_stop_string_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopStrings(stops)
    emitted = ""
    for n, char in enumerate(text, 1):
        result = matcher.push(char)
        emitted += result.text
        if result.stopped:
            return
        held = text[len(emitted) : n]
        assert any(stop.startswith(held) for stop in stops) or held == ""
        longer = [text[n - size : n] for size in range(len(held) + 1, n + 1)]
        assert not any(stop.startswith(part) and stop != part for stop in stops for part in longer)


def test_nothing_of_the_stop_string_or_after_it_is_emitted() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.push("Answer.\n") == ("Answer.", False, None)
    assert matcher.push("\nUs") == ("", False, None)
    assert matcher.push("er: next") == ("", True, "\n\nUser:")
    assert matcher.push("more") == ("", True, "\n\nUser:")
    assert matcher.flush() == ""


def test_what_was_no_stop_string_after_all_is_given_out() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the EN") == ("the ", False, None)
    assert matcher.push("EMY") == ("ENEMY", False, None)
    assert matcher.push("E").text + matcher.flush() == "E"


def test_the_earliest_end_counts_and_then_the_longest() -> None:
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")
    assert run(["c", "bc", "abc"], ["xabc"]) == ("x", "abc")


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        (["a", ""], r"stop\[1\] is empty"),
        (["a", 3], r"stop\[1\] must be a string, got int"),
        ("ab", "must be a list of strings"),
        (["\ud800"], r"stop\[0\] is not valid Unicode"),
    ],
)
def test_stop_strings_that_make_no_sense_are_refused(stops: list[str], message: str) -> None:
    with pytest.raises(TextError, match=message):
        StopStrings(stops)
