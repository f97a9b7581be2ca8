"""What every model on the wire has in common: strict types, no unknown fields, and a version."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: The version of the wire contract this package speaks.
WIRE_VERSION = 1


class Wire(BaseModel):
    """Strict and closed: a field of the wrong type or of an unknown name is an error, and nothing is coerced."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Versioned(Wire):
    """A model that travels on its own and so carries the version of the contract it was written for."""

    v: Literal[1] = Field(default=1, description="Version of the wire contract")
