"""Identifiers as they travel: what a session id, a job id and a tenant may look like."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

#: Session ids become part of Redis keys and channel names, inside one hash tag: no braces, no spaces, no controls.
SESSION_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@~-]{0,127}$"

#: RQ allows letters, digits, underscores and dashes in a job id, and a step's id is its job's id.
STEP_ID_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"

#: Each pattern in words, as errors give it.
PATTERNS = {
    SESSION_ID_PATTERN: "1-128 characters: letters, digits and . _ : @ ~ -, the first a letter or digit",
    STEP_ID_PATTERN: "1-128 characters: letters, digits, underscore, dash",
}

SessionId = Annotated[str, Field(pattern=SESSION_ID_PATTERN, description=PATTERNS[SESSION_ID_PATTERN])]
StepId = Annotated[str, Field(pattern=STEP_ID_PATTERN, description=PATTERNS[STEP_ID_PATTERN])]
Tenant = Annotated[str, Field(pattern=SESSION_ID_PATTERN, description="Whose share of the worker a job counts against")]
TokenId = Annotated[int, Field(ge=0, lt=1 << 24, description="Token id; the log keeps 24 bits")]
Seed = Annotated[int, Field(ge=0, lt=1 << 64, description="64-bit unsigned seed of a session's randomness")]
Position = Annotated[int, Field(ge=0, lt=1 << 31, description="Index into a session's log")]
