"""What a running step writes every cycle, made without models, is to the byte what the models would have made."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.schemas import Logprob, StepRecord, TokensEvent, decode_event, decode_record, encode
from tokenloom.schemas.codec import CodecError
from tokenloom.schemas.running import running_record, tokens_event

LOGPROBS = [Logprob(chosen=-0.5), Logprob(chosen=-1, top=[(1, -0.5), (2, -1)])]

EVENTS: list[dict[str, Any]] = [
    {"position": 0, "tokens": [5], "text": "", "logprobs": None},
    {"position": 70_000, "tokens": [0, 300, 70_000], "text": "é\U0001f600", "logprobs": None},
    {"position": 1, "tokens": [7], "text": "x" * 40, "logprobs": []},
    {"position": 1, "tokens": [7], "text": "x", "logprobs": LOGPROBS},
]

RECORDS = [
    {"base": 0, "appended": 0, "generated": 0, "cached": 0, "began": 0.0, "deaths": 0},
    {"base": 70_000, "appended": 300, "generated": 12, "cached": 256, "began": 1.7e9 + 0.25, "deaths": 2},
]


@pytest.mark.parametrize("fields", EVENTS)
def test_an_event_of_tokens_has_the_bytes_of_its_model(fields: dict[str, Any]) -> None:
    data = tokens_event("s-1", "j_1", 1.5, **fields)
    model = TokensEvent(session="s-1", job="j_1", at=1.5, **fields)
    assert data == encode(model)
    assert decode_event(data) == model


@pytest.mark.parametrize("fields", RECORDS)
def test_the_record_of_a_running_step_has_the_bytes_of_its_model(fields: dict[str, Any]) -> None:
    data = running_record(**fields)
    assert data == encode(StepRecord(**fields))
    assert decode_record(data) == StepRecord(**fields)


def test_a_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(CodecError, match="surrogates not allowed"):
        tokens_event("s", "j", 1.5, 0, [1], "\ud800", None)
