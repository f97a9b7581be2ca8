"""From what arrived to a model, or to an error that says which field, what value, and what would have been accepted."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from .base import WIRE_VERSION, Versioned
from .codec import CodecError, decode
from .errors import TokenloomError, shorten
from .events import EVENT, EVENT_TYPES, Event
from .ids import PATTERNS
from .records import JobRecord, StepRecord
from .requests import REQUESTS, Request

Model = TypeVar("Model", bound=Versioned)


def parse_request(function: str, kwargs: Any) -> Request:
    """The request of a job that names ``function``.

    Raises TokenloomError: ``unknown_job``, ``unknown_version``, or ``invalid`` with field, value and limit.
    """
    model = REQUESTS.get(str(function))
    if model is None:
        served = ", ".join(REQUESTS)
        raise TokenloomError.of(
            "unknown_job",
            f"{_shown(function)} is not a job of this queue; served are: {served}",
            value=function,
            limit=served,
        )
    return parse(model, kwargs, what=f"{model.__name__} of a job")


def decode_event(data: bytes, *, id: str | None = None) -> Event:
    """The event of a stream entry's field ``e``; ``id`` is the entry's id, which the event then carries.

    Raises TokenloomError: ``unknown_version``, or ``invalid`` for an unknown type, a malformed field or bad msgpack.
    """
    fields = _plain(data, "event")
    _check_version(fields, "event")
    kind = fields.get("type")
    if kind not in EVENT_TYPES:
        known = ", ".join(EVENT_TYPES)
        message = f"unknown event type {_shown(kind)}; known are: {known}"
        raise TokenloomError.of("invalid", message, field="type", value=kind, limit=known)
    try:
        event = EVENT.validate_python(fields)
    except ValidationError as error:
        raise explain(error, what="event", at=1) from None
    if id is not None:
        event.mark(id)
    return event


def decode_record(data: bytes) -> StepRecord | JobRecord:
    """An entry of a session's ``steps`` hash. Raises TokenloomError as ``decode_event`` does."""
    fields = _plain(data, "record")
    if "operation" in fields:
        return parse(JobRecord, fields, what="record")
    return parse(StepRecord, fields, what="record")


def parse(model: type[Model], fields: Any, *, what: str | None = None) -> Model:
    """The model of a decoded map. Raises TokenloomError: ``unknown_version`` or ``invalid``."""
    what = what or model.__name__
    _check_version(fields, what)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise explain(error, what=what, model=model) from None


def explain(
    error: ValidationError, *, what: str | None = None, model: type[BaseModel] | None = None, at: int = 0
) -> TokenloomError:
    """The first of pydantic's errors in plain words, the others counted. ``at``: how many leading parts of the path to
    leave out (a union's tag).
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    kind = first["type"]
    parts = [str(part) for part in first["loc"][at:] if part != "[key]"]
    path = ".".join(parts) if parts else None
    limit = _limit(first, model)
    value = None if kind in ("missing", "value_error") else first["input"]
    if kind == "missing":
        message = f"{path} is missing"
    elif kind == "value_error":
        message = str(first["ctx"]["error"])
    elif kind == "extra_forbidden":
        shown = shorten(path, 80) if path else "''"
        message = f"unknown field {shown}; {limit}" if limit else f"unknown field {shown}"
    else:
        message = f"{shorten(path or what or 'value', 80)}: {_shown(value)} is not accepted; {limit}"
    if what:
        message = f"{what}: {message}"
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more error{'s' if len(errors) > 2 else ''})"
    return TokenloomError.of("invalid", message, field=path, value=value, limit=limit)


def _plain(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = decode(data)
    except CodecError as error:
        raise TokenloomError.of("invalid", f"{what}: {error}") from error
    if not isinstance(fields, dict):
        raise TokenloomError.of("invalid", f"{what}: a map is expected, not {type(fields).__name__}", value=fields)
    return fields


def _check_version(fields: Any, what: str) -> None:
    if not isinstance(fields, dict):
        raise TokenloomError.of("invalid", f"{what}: a map is expected, not {type(fields).__name__}", value=fields)
    version = fields.get("v", WIRE_VERSION)
    if type(version) is not int or version != WIRE_VERSION:
        raise TokenloomError.of(
            "unknown_version",
            f"{what}: wire version {_shown(version)} is not supported; supported is {WIRE_VERSION}",
            field="v",
            value=version,
            limit=WIRE_VERSION,
        )


_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "finite_number": "a finite number",
    "string_unicode": "valid Unicode",
}


def _limit(error: Any, model: type[BaseModel] | None) -> str | None:
    """What would have been accepted, in words."""
    kind, given = error["type"], error.get("ctx", {})
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}"
    if kind == "missing":
        return "required"
    if kind == "value_error":
        return None
    if kind == "extra_forbidden":
        fields = _fields_at(model, error["loc"][:-1])
        return f"the fields are: {', '.join(fields)}" if fields else None
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(given["pattern"], f"text matching {given['pattern']}")
    if kind in ("string_too_long", "string_too_short"):
        most = kind == "string_too_long"
        number = given["max_length" if most else "min_length"]
        return f"at {'most' if most else 'least'} {number} character{'' if number == 1 else 's'}"
    if kind in ("too_long", "too_short"):
        most = kind == "too_long"
        number = given["max_length" if most else "min_length"]
        return f"at {'most' if most else 'least'} {number} item{'' if number == 1 else 's'}"
    for name, words in (("ge", "{} or more"), ("gt", "more than {}"), ("le", "at most {}"), ("lt", "less than {}")):
        if name in given:
            return words.format(_number(given[name]))
    if kind == "literal_error":
        return f"one of {given['expected']}"
    return str(error["msg"])


def _shown(value: Any) -> str:
    return repr(shorten(value, 80)) if isinstance(value, str) else shorten(value, 80)


def _number(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def _fields_at(model: type[BaseModel] | None, path: tuple[str | int, ...]) -> list[str]:
    """The fields of the model that ``path`` leads to, through lists and optional fields."""
    for part in path:
        if isinstance(part, str):
            field = model.model_fields.get(part) if model else None
            model = _model_in(field.annotation) if field else None
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model in a type such as ``list[Model] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
