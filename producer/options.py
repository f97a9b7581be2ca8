"""The keyword arguments of a step, told apart: what the wire contract takes and what RQ takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.generation import Generation


class RQOptions(TypedDict, total=False):
    """What RQ's own ``Queue.enqueue`` calls by the same names. ``depends_on`` also takes steps and pending jobs.

    ``enqueue_in`` (seconds or timedelta) and ``enqueue_at`` (datetime) schedule the job; a worker with RQ's scheduler
    running (``rq worker --with-scheduler``) then puts it into the queue.
    """

    job_timeout: int | str | None
    result_ttl: int | str | None
    failure_ttl: int | str | None
    ttl: int | str | None
    depends_on: Any
    at_front: bool | None
    meta: dict[str, Any] | None
    retry: Any
    on_success: Any
    on_failure: Any
    on_stopped: Any
    webhooks: Any
    description: str | None
    enqueue_in: float | timedelta | None
    enqueue_at: datetime | None


class StepOptions(RQOptions, total=False):
    """A step's sampling settings (the fields of ``Generation``) and RQ's options."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_window: int | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None


RQ_NAMES = frozenset(RQOptions.__annotations__)
GENERATION_NAMES = frozenset(Generation.model_fields)


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of the generation, options of RQ). Raises TypeError for a name that is neither's."""
    unknown = [name for name in options if name not in RQ_NAMES and name not in GENERATION_NAMES]
    if unknown:
        raise TypeError(
            f"unexpected keyword argument {unknown[0]!r}; sampling settings are {', '.join(sorted(GENERATION_NAMES))}; "
            f"options of RQ are {', '.join(sorted(RQ_NAMES))}"
        )
    settings = {name: value for name, value in options.items() if name in GENERATION_NAMES and value is not None}
    if isinstance(settings.get("stop"), str):
        settings["stop"] = [settings["stop"]]
    for name in ("stop", "stop_tokens"):
        if name in settings:
            settings[name] = listed(settings[name])
    return settings, {name: value for name, value in options.items() if name in RQ_NAMES and value is not None}


def check_rq(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of RQ without those that are None. Raises TypeError for another name."""
    for name in options:
        if name not in RQ_NAMES:
            raise TypeError(f"unexpected keyword argument {name!r}; options of RQ are {', '.join(sorted(RQ_NAMES))}")
    return {name: value for name, value in options.items() if value is not None}


def listed(values: Any) -> Any:
    """A list of any sequence, with plain integers for whatever counts as one; what is not a sequence stays itself."""
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
        return values
    return [value if isinstance(value, (str, bool)) else _index(value) for value in values]


def _index(value: Any) -> Any:
    try:
        return value.__index__()
    except AttributeError:
        return value


def unix_time(deadline: float | datetime | timedelta | None) -> float | None:
    """Seconds since the epoch; a timedelta counts from now. Raises InvalidRequest for a datetime without a zone."""
    if isinstance(deadline, timedelta):
        return datetime.now().timestamp() + deadline.total_seconds()
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise TokenloomError.of(
                "invalid", "deadline: a datetime needs a time zone", field="deadline", value=deadline.isoformat()
            )
        return deadline.timestamp()
    return deadline
