"""What every model on the wire has in common: strict types and a version; and who may meet unknown fields."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: The version of the wire contract this package speaks.
WIRE_VERSION = 1

#: Of what workers write: who reads it passes over fields that a later worker adds.
TOLD = ConfigDict(extra="ignore")


class Wire(BaseModel):
    """Strict and closed: a field of the wrong type or of an unknown name is an error, and nothing is coerced.

    What producers write stays closed, so that a typing mistake is not passed over; what workers write is ``TOLD``.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Versioned(Wire):
    """A model that travels on its own and so carries the version of the contract it was written for."""

    v: Literal[1] = Field(default=1, description="Version of the wire contract")
