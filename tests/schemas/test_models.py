"""Everything that travels survives the journey: strict models, through msgpack, unchanged."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from tokenloom.schemas import (
    AppendedEvent,
    ChatMessage,
    ClonedEvent,
    CloneRequest,
    CloneResult,
    ClosedEvent,
    CloseRequest,
    CloseResult,
    ContextFull,
    ErrorBody,
    ErrorEvent,
    FinishedEvent,
    Generation,
    InvalidRequest,
    JobRecord,
    Keys,
    Logprob,
    OpenedEvent,
    OpenRequest,
    OpenResult,
    Request,
    RewindRequest,
    RewindResult,
    RewoundEvent,
    StepRecord,
    StepRequest,
    StepResult,
    TokenloomError,
    TokensEvent,
    Usage,
    Versioned,
    decode,
    decode_event,
    decode_record,
    encode,
    parse_request,
)
from tokenloom.schemas.errors import CLASSES, body_of_text
from tokenloom.schemas.events import EVENT_TYPES
from tokenloom.schemas.records import RESULTS
from tokenloom.schemas.requests import REQUESTS
from tokenloom.schemas.validate import parse

HEAD = {"session": "s-1", "job": "j_1", "at": 1.5}
LOGPROBS = [Logprob(chosen=-0.5, top=[(1, -0.5), (2, -1)])]
USAGE = Usage(appended=3, generated=2, cached=1)
ERROR = ErrorBody(code="context_full", message="no room", field="tokens", value="9", limit="8")
STEP_RESULT = StepResult(
    session="s", step="j", reason="stop", tokens=[1, 2], text="é\U0001f600", length=5, usage=USAGE, logprobs=LOGPROBS
)
CUT_RESULT = StepResult(
    session="s", step="j", reason="length", tokens=[1], text="", before="\ufffd", pending=3, length=5, usage=USAGE
)
GENERATION = Generation(
    max_tokens=3, temperature=1, logit_bias={5: 1.5, 7: -2}, stop=["\n"], stop_tokens=[2], ignore_eos=True
)

REQUEST_CASES = [
    OpenRequest(session="a", seed=(1 << 64) - 1, defaults=GENERATION, exist_ok=True, tenant="t"),
    StepRequest(session="a", tokens=[0, (1 << 24) - 1], generation=GENERATION, deadline=1.5, at_length=0),
    StepRequest(session="a", text="hé"),
    StepRequest(session="a", messages=[ChatMessage(role="user", content="x")]),
    CloneRequest(session="a", targets=["b", "c"], upto=3, seeds=[1, 2]),
    RewindRequest(session="a", to=0),
    CloseRequest(session="a"),
]
EVENT_CASES = [
    OpenedEvent(**HEAD, seed=(1 << 64) - 1, length=2, parent="p"),
    AppendedEvent(**HEAD, position=0, tokens=[1]),
    AppendedEvent(**HEAD, position=0, tokens=[1], before="\ufffd"),
    TokensEvent(**HEAD, position=1, tokens=[2], text="x", logprobs=LOGPROBS),
    FinishedEvent(**HEAD, reason="error", length=2, usage=USAGE, error=ERROR),
    FinishedEvent(**HEAD, reason="length", length=2, usage=USAGE, pending=1),
    RewoundEvent(**HEAD, length=1),
    ClonedEvent(**HEAD, targets=["c"], length=1),
    ClosedEvent(**HEAD),
    ErrorEvent(**HEAD, error=ERROR),
]
RECORD_CASES: list[StepRecord | JobRecord] = [
    StepRecord(base=1, appended=2, began=1.5),
    StepRecord(base=1, appended=2, generated=2, began=1, ended=2, reason="stop", result=STEP_RESULT),
    StepRecord(base=1, appended=2, generated=1, began=1, ended=2, reason="length", result=CUT_RESULT),
    StepRecord(base=1, appended=0, began=1, ended=2, reason="error", error=ERROR),
    JobRecord(operation="open", result=OpenResult(session="a", seed=1, length=0, created=True)),
    JobRecord(operation="clone", result=CloneResult(session="a", targets=["b"], seeds=[1], length=2)),
    JobRecord(operation="rewind", result=RewindResult(session="a", length=2)),
    JobRecord(operation="close", result=CloseResult(session="a", closed=False)),
    JobRecord(operation="close", error=ERROR),
]


def test_the_cases_below_cover_every_model() -> None:
    assert {type(case) for case in REQUEST_CASES} == set(REQUESTS.values())
    assert {type(case) for case in EVENT_CASES} == set(EVENT_TYPES.values())
    assert {type(case.result) for case in RECORD_CASES if case.result is not None} == set(RESULTS.values())


@pytest.mark.parametrize("request_", REQUEST_CASES, ids=lambda case: type(case).__name__)
def test_a_request_survives_the_queue(request_: Request) -> None:
    kwargs = decode(encode(request_.model_dump(exclude_none=True)))
    assert parse_request(request_.function, kwargs) == request_


@pytest.mark.parametrize("event", EVENT_CASES, ids=lambda case: case.type)
def test_an_event_survives_the_channel(event: Versioned) -> None:
    assert decode_event(encode(event)) == event
    assert decode_event(encode(event), id="5-1").id == "5-1"


@pytest.mark.parametrize("record", RECORD_CASES, ids=lambda case: type(case).__name__)
def test_a_record_survives_the_hash(record: StepRecord | JobRecord) -> None:
    assert decode_record(encode(record)) == record


def with_more(value: Any) -> Any:
    """Each map in it with a field that only a later version knows."""
    if isinstance(value, dict):
        return {name: with_more(item) for name, item in value.items()} | {"later": [{}]}
    return [with_more(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("event", EVENT_CASES, ids=lambda case: case.type)
def test_fields_that_a_later_version_adds_to_events_are_passed_over(event: Versioned) -> None:
    assert decode_event(encode(with_more(decode(encode(event))))) == event


@pytest.mark.parametrize("record", RECORD_CASES, ids=lambda case: type(case).__name__)
def test_fields_that_a_later_version_adds_to_records_are_passed_over(record: StepRecord | JobRecord) -> None:
    assert decode_record(encode(with_more(decode(encode(record))))) == record
    if record.result is not None:
        assert parse(type(record.result), with_more(decode(encode(record.result)))) == record.result


@pytest.mark.parametrize("request_", REQUEST_CASES, ids=lambda case: type(case).__name__)
def test_an_unknown_field_of_a_request_is_refused(request_: Request) -> None:
    with pytest.raises(InvalidRequest, match="unknown field later"):
        parse_request(request_.function, {**request_.model_dump(exclude_none=True), "later": 1})


def test_a_record_of_another_operation_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="RewindResult is not what close returns"):
        decode_record(encode({"operation": "close", "result": {"session": "a", "length": 1}}))


def test_a_token_id_in_a_bias_may_be_decimal_text() -> None:
    request = parse_request(StepRequest.function, {"session": "a", "generation": {"logit_bias": {"5": 1, 6: 2.5}}})
    assert isinstance(request, StepRequest)
    assert request.generation.logit_bias == {5: 1.0, 6: 2.5}
    with pytest.raises(InvalidRequest, match="comes twice"):
        parse_request(StepRequest.function, {"session": "a", "generation": {"logit_bias": {"5": 1, 5: 2.5}}})


def test_a_step_setting_wins_over_the_default() -> None:
    assert Generation(top_k=3).over(Generation(top_k=1, max_tokens=2)) == Generation(top_k=3, max_tokens=2)
    assert Generation(top_k=3).over(None) == Generation(top_k=3)


def test_every_code_has_a_class_of_its_own_kind() -> None:
    assert type(TokenloomError.of("context_full", "x")) is ContextFull
    for code, cls in CLASSES.items():
        error = TokenloomError.of(code, "what", field="f", value=[1] * 10_000, limit="most")
        assert type(error) is cls
        assert error.code == code
        assert len(error.body.value or "") <= 200
        assert body_of_text(f"Traceback (most recent call last):\n  x\nsome.Error: {error}\n") == ErrorBody(
            code=code, message="what"
        )
        assert pickle.loads(pickle.dumps(error)).body == error.body
    assert body_of_text("ValueError: [engine]") is None


def test_keys_of_one_session_share_a_slot_tag() -> None:
    keys = Keys("ns")
    names = [getattr(keys, name)("s:1") for name in ("session", "log", "steps", "finished", "events", "tokens")]
    assert len(set(names)) == 6
    assert all(name.startswith("ns:{s:1}:") for name in names)


@pytest.mark.parametrize("module", ["tokenloom.schemas", "tokenloom.producer"])
def test_importing_is_light(module: str) -> None:
    """No numpy, no engine; the schemas without RQ and Redis as well."""
    code = f"import {module}, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert module in loaded
    heavy = {"numpy", "tokenizers", "jinja2", "tokenloom.native_ext", "tokenloom.worker"}
    assert not loaded & heavy
    if module == "tokenloom.schemas":
        assert not loaded & {"rq", "redis"}
