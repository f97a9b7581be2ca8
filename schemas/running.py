"""What a running step writes with every token, in bytes without a model in between: it is made anew for each session in
each cycle, while the next forward wants the same core.

The bytes are those that ``encode`` makes of the model. Nothing is checked on the way, so these are for a writer's own
values, which it has from checked models; readers check everything they read in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .codec import encode_checked
from .events import Logprob


def tokens_event(
    session: str, job: str, at: float, position: int, tokens: list[int], text: str, logprobs: Sequence[Logprob] | None
) -> bytes:
    """A TokensEvent. Raises CodecError for text that is not valid Unicode."""
    fields: dict[str, Any] = {
        "v": 1,
        "session": session,
        "job": job,
        "at": at,
        "type": "tokens",
        "position": position,
        "tokens": tokens,
        "text": text,
    }
    if logprobs is not None:
        fields["logprobs"] = [{"chosen": one.chosen, "top": one.top} for one in logprobs]
    return encode_checked(fields)


def running_record(base: int, appended: int, generated: int, cached: int, began: float, deaths: int) -> bytes:
    """The StepRecord of a step that has not ended."""
    return encode_checked(
        {
            "v": 1,
            "base": base,
            "appended": appended,
            "generated": generated,
            "cached": cached,
            "began": began,
            "deaths": deaths,
        }
    )
