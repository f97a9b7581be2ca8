"""A bad request is answered with the field, the value and what would have been accepted."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.schemas import InvalidRequest, TokenloomError, decode_event, decode_record, encode, parse_request
from tokenloom.schemas.requests import REQUESTS

STEP = "tokenloom.schemas.jobs.step"
CLONE = "tokenloom.schemas.jobs.clone"


def refusal(function: str, kwargs: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(function, kwargs)
    return caught.value


@pytest.mark.parametrize("function", ["os.system", "", None, 5, "tokenloom.schemas.jobs.wrong", ["x"]])
def test_an_unknown_job_lists_the_served_ones(function: Any) -> None:
    error = refusal(function, {"session": "a"})
    assert error.code == "unknown_job"
    for served in REQUESTS:
        assert served in error.body.message


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0])
def test_another_version_is_named_beside_the_supported_one(version: Any) -> None:
    error = refusal(STEP, {"v": version, "something": "new"})
    assert error.code == "unknown_version"
    assert error.body.field == "v"
    assert error.body.value == (None if version is None else str(version))
    assert error.body.limit == "1"
    assert "supported is 1" in error.body.message


@pytest.mark.parametrize(
    ("function", "kwargs", "field", "value", "limit"),
    [
        (STEP, {"session": "a b"}, "session", "a b", "1-128 characters: letters, digits and . _ : @ ~ -"),
        (STEP, {"session": "a\n"}, "session", "a\n", "1-128 characters"),
        (STEP, {"session": "{a}"}, "session", "{a}", "1-128 characters"),
        (STEP, {"session": 5}, "session", "5", "expected text"),
        (STEP, {"session": "a", "tokens": [1, -1]}, "tokens.1", "-1", "0 or more"),
        (STEP, {"session": "a", "tokens": [1 << 24]}, "tokens.0", str(1 << 24), "less than 16777216"),
        (STEP, {"session": "a", "tokens": [1.0]}, "tokens.0", "1.0", "expected an integer"),
        (STEP, {"session": "a", "tokens": [True]}, "tokens.0", "True", "expected an integer"),
        (STEP, {"session": "a", "tokens": "x"}, "tokens", "x", "expected a list"),
        (STEP, {"session": "a", "generation": {"temperature": -1}}, "generation.temperature", "-1", "0 or more"),
        (STEP, {"session": "a", "generation": {"top_p": 0}}, "generation.top_p", "0", "more than 0"),
        (STEP, {"session": "a", "generation": {"top_p": 1.5}}, "generation.top_p", "1.5", "at most 1"),
        (
            STEP,
            {"session": "a", "generation": {"temperature": float("nan")}},
            "generation.temperature",
            "nan",
            "finite",
        ),
        (STEP, {"session": "a", "generation": {"stop": ["x"] * 17}}, "generation.stop", None, "at most 16 items"),
        (STEP, {"session": "a", "generation": {"stop": [""]}}, "generation.stop.0", "", "at least 1 character"),
        (STEP, {"session": "a", "generation": {"logit_bias": {"x": 1}}}, "generation.logit_bias.x", "x", "an integer"),
        (
            STEP,
            {"session": "a", "generation": {"tempature": 1}},
            "generation.tempature",
            "1",
            "the fields are: max_tokens",
        ),
        (STEP, {"session": "a", "generation": []}, "generation", "[]", "expected a map"),
        (STEP, {"session": "a", "foo": 1}, "foo", "1", "the fields are: v, session, tenant, tokens, text"),
        (STEP, {"session": "a", "messages": []}, "messages", "[]", "at least 1 item"),
        (STEP, {"session": "a", "messages": [{"role": "user"}]}, "messages.0.content", None, "required"),
        (STEP, {"session": "a", "text": "\x00" * ((1 << 22) + 1)}, "text", None, "at most 4194304 characters"),
        (CLONE, {"session": "a", "targets": []}, "targets", "[]", "at least 1 item"),
        (CLONE, {"session": "a", "targets": ["b"] * 1025}, "targets", None, "at most 1024 items"),
    ],
)
def test_the_field_the_value_and_the_limit_are_named(
    function: str, kwargs: Any, field: str, value: str | None, limit: str
) -> None:
    body = refusal(function, kwargs).body
    assert body.code == "invalid"
    assert body.field == field
    assert value is None or body.value == value
    assert limit in (body.limit or "")
    assert field in body.message
    assert len(body.message) < 600


@pytest.mark.parametrize(
    ("function", "kwargs", "message"),
    [
        (
            STEP,
            {"session": "a", "text": "x", "tokens": [1]},
            "give at most one of tokens, text and messages, not tokens and text",
        ),
        (CLONE, {"session": "a", "targets": ["a"]}, "none the source's"),
        (CLONE, {"session": "a", "targets": ["b", "b"]}, "every id must be different"),
        (CLONE, {"session": "a", "targets": ["b"], "seeds": [1, 2]}, "2 given for 1 targets"),
        (STEP, [1, 2], "a map is expected, not list"),
        (STEP, None, "a map is expected, not NoneType"),
    ],
)
def test_what_is_wrong_with_the_whole_is_said(function: str, kwargs: Any, message: str) -> None:
    assert message in refusal(function, kwargs).body.message


def test_the_first_error_is_named_and_the_others_counted() -> None:
    message = refusal(STEP, {"session": "", "tokens": [-1], "generation": {"top_k": -1}}).body.message
    assert "session" in message
    assert message.endswith("(and 2 more errors)")
    assert refusal(STEP, {"session": "", "tokens": [-1]}).body.message.endswith("(and 1 more error)")


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(
            st.lists(inner),
            st.dictionaries(st.sampled_from(["session", "tokens", "text", "v", "generation", "stop", "x"]), inner),
        ),
    )
)
def test_no_request_raises_anything_but_our_error(kwargs: Any) -> None:
    for function in REQUESTS:
        with contextlib.suppress(TokenloomError):
            parse_request(function, kwargs)


def test_an_event_of_an_unknown_version_or_type_is_refused_clearly() -> None:
    base = {"v": 1, "type": "closed", "session": "a", "job": "j", "at": 1.0}
    assert decode_event(encode(base)).type == "closed"
    with pytest.raises(InvalidRequest, match="wire version 2 is not supported; supported is 1") as caught:
        decode_event(encode({**base, "v": 2, "type": "new"}))
    assert caught.value.code == "unknown_version"
    with pytest.raises(InvalidRequest, match="unknown event type 'new'; known are: opened, appended, tokens"):
        decode_event(encode({**base, "type": "new"}))
    with pytest.raises(InvalidRequest, match=r"event: at: 'x' is not accepted; expected a number"):
        decode_event(encode({**base, "at": "x"}))
    with pytest.raises(InvalidRequest, match="cut short"):
        decode_event(encode(base)[:-1])
    with pytest.raises(InvalidRequest, match="a map is expected, not list"):
        decode_event(encode([1]))
    with pytest.raises(InvalidRequest, match="record: base is missing"):
        decode_record(encode({"appended": 1, "began": 1}))
