"""How tokens are chosen: the settings a step may give and a session may default."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from .base import Wire
from .ids import TokenId


def _integer_keys(given: Any) -> Any:
    """Map keys are text in many languages, so decimal text counts as the integer here."""
    if not isinstance(given, dict):
        return given
    keys = [int(k) if isinstance(k, str) and k.isascii() and k.isdigit() and len(k) < 12 else k for k in given]
    if len(set(keys)) != len(keys):
        raise ValueError("logit_bias: a token id comes twice, as text and as integer")
    return dict(zip(keys, given.values(), strict=True))


StopString = Annotated[str, Field(min_length=1, max_length=512)]

LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-1e9, le=1e9)]], Field(max_length=4096), BeforeValidator(_integer_keys)
]


class Generation(Wire):
    """Every field is optional: a step's value wins over its session's default, which wins over the built-in one.

    ``over`` gives the result. Names and meanings are those of vLLM's and llama.cpp's samplers; the order in which they
    apply is documented with the engine's ``Sampling``.
    """

    max_tokens: int | None = Field(
        default=None, ge=0, lt=1 << 24, description="Tokens to generate at most; 0 only prefills"
    )
    temperature: float | None = Field(default=None, ge=0, le=100, description="0 is greedy")
    top_k: int | None = Field(default=None, ge=0, lt=1 << 24, description="0 is off")
    top_p: float | None = Field(default=None, gt=0, le=1, description="1 is off")
    min_p: float | None = Field(default=None, ge=0, le=1, description="0 is off")
    repetition_penalty: float | None = Field(default=None, gt=0, le=100, description="1 is off")
    presence_penalty: float | None = Field(default=None, ge=-100, le=100, description="0 is off")
    frequency_penalty: float | None = Field(default=None, ge=-100, le=100, description="0 is off")
    penalty_window: int | None = Field(default=None, ge=-1, lt=1 << 31, description="Last tokens of the log; -1 is all")
    logit_bias: LogitBias | None = Field(default=None, description="Token id -> added to its logit")
    stop: list[StopString] | None = Field(
        default=None, max_length=16, description="Strings that end the step, not emitted"
    )
    stop_tokens: list[TokenId] | None = Field(default=None, max_length=256, description="Besides the model's own")
    ignore_eos: bool | None = Field(default=None, description="Go on past the model's own stop tokens")
    logprobs: int | None = Field(
        default=None, ge=0, le=100, description="Report log-probabilities, of the top n as well"
    )

    def over(self, defaults: Generation | None) -> Generation:
        """This one's given fields over the defaults' given fields."""
        if defaults is None:
            return self
        return defaults.model_copy(update=self.model_dump(exclude_none=True))


#: What a field is when neither step nor session says.
BUILT_IN = Generation(
    max_tokens=256,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    penalty_window=64,
    logit_bias={},
    stop=[],
    stop_tokens=[],
    ignore_eos=False,
)
