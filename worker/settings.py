"""The worker's settings: environment variables named ``TOKENLOOM_`` and the field's name in capitals."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tokenloom.schemas.keys import DEFAULT_NAMESPACE

from .sizes import parse_bytes

PREFIX = "TOKENLOOM_"


class SettingsError(ValueError):
    """A setting is missing or wrong; the message names the variable, its value and what would do."""


class WorkerSettings(BaseSettings):
    """Everything a worker can be told. ``tokenloom worker --help`` lists this with the defaults."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True)

    model: Path | None = Field(default=None, description="Path of the GGUF model file (required)")
    engine: str = Field(default="ggml", description="Entry point of group tokenloom.engines that runs the model")
    single_sequence: bool = Field(
        default=False, description="Hold one resident session at a time, swapping sessions in and out"
    )
    kv_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 44)] = Field(
        default=1 << 30, description="Most memory for KV cells; accepts 512M, 2GiB"
    )
    kv_type: Literal["f16", "int8"] = Field(
        default="f16",
        description="How KV cells hold a number; int8 takes half the memory, at a divergence of 0.0006 nats",
    )
    threads: int = Field(
        default=0, ge=0, le=4096, description="Threads of a forward; 0 is every core this process may use"
    )
    kernels: Literal["auto", "portable", "avx2", "avxvnni", "vnni", "amx", "neon", "ggml"] = Field(
        default="auto",
        description="Kernels: auto, portable, avx2, avxvnni, vnni, neon, amx (not by auto), all the same bits; or ggml",
    )
    packed_cache: str = Field(
        default="off",
        min_length=1,
        description="Where packed weights are kept for the next start: off, beside the model, or a folder",
    )
    max_batch_tokens: int = Field(default=512, ge=1, le=1 << 16, description="Most tokens in one forward")
    prefill_chunk: int = Field(
        default=128, ge=1, le=1 << 16, description="Most prompt tokens of one session in one forward while others wait"
    )
    max_sequences: int = Field(default=1024, ge=1, le=1 << 16, description="Most sessions with cells in memory")
    max_active: int = Field(
        default=256, ge=1, le=1 << 16, description="Most steps running at once; more wait in the queue"
    )
    max_active_per_tenant: int = Field(
        default=0, ge=0, le=1 << 16, description="Most steps of one tenant running at once; 0 is no limit"
    )
    max_waiting_per_session: int = Field(
        default=256,
        ge=1,
        le=1 << 16,
        description="Most jobs taken for one session at once; more are refused as overloaded",
    )
    max_claimed: int = Field(
        default=1024, ge=1, le=1 << 16, description="Most jobs taken from the queue and not finished"
    )
    namespace: str = Field(
        default=DEFAULT_NAMESPACE,
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        description="Prefix of every key; clients have to name the same",
    )
    restore: Literal["lazy", "eager"] = Field(
        default="lazy", description="Rebuild the last run's cells when next needed, or at start"
    )
    heartbeat: float = Field(
        default=0.5, gt=0, le=60, description="Seconds between heartbeats and checks for dead workers"
    )
    lease: float = Field(
        default=3.0, gt=0, le=600, description="Seconds without a heartbeat after which a worker is taken for dead"
    )
    grace: float = Field(
        default=10.0, ge=0, le=3600, description="Seconds after SIGTERM in which running steps may finish"
    )
    redis_wait: float = Field(
        default=60.0,
        ge=0,
        le=86400,
        description="Seconds that `tokenloom worker` waits at start for a Redis that is away",
    )
    max_deaths: int = Field(default=3, ge=1, le=100, description="Worker deaths after which a step is failed as poison")
    remember: int = Field(
        default=64, ge=1, le=4096, description="Finished jobs a session remembers, so that a repeat runs nothing"
    )
    events_kept: int = Field(default=10_000, ge=16, le=1 << 24, description="Events a session's stream keeps, about")
    closed_ttl: int = Field(default=300, ge=1, le=1 << 30, description="Seconds a closed session's keys stay readable")
    idle_ttl: int = Field(
        default=0, ge=0, le=1 << 30, description="Seconds without use after which a session expires; 0 is never"
    )
    callbacks: Annotated[frozenset[str], NoDecode] = Field(
        default=frozenset(),
        description="Names of callback functions jobs may bring, comma-separated; others are refused",
    )

    webhook_hosts: Annotated[frozenset[str], NoDecode] = Field(
        default=frozenset(),
        description="Hosts that jobs' webhooks may call, comma-separated, * for any; others are refused",
    )
    log: Literal["text", "json"] = Field(
        default="text", description="Lines of the log: RQ's own, or one JSON object each"
    )

    @field_validator("kv_bytes", mode="before")
    @classmethod
    def _sizes(cls, value: object) -> object:
        return parse_bytes(value) if isinstance(value, str) else value

    @field_validator("callbacks", "webhook_hosts", mode="before")
    @classmethod
    def _comma_separated(cls, value: object) -> object:
        return frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("lease")
    @classmethod
    def _longer_than_heartbeat(cls, value: float, info: object) -> float:
        beat = getattr(info, "data", {}).get("heartbeat")
        if beat is not None and value < 2 * beat:
            raise ValueError(f"must be at least twice TOKENLOOM_HEARTBEAT ({beat:g} s)")
        return value


def load_settings() -> WorkerSettings:
    """Settings from the environment. Raises SettingsError naming each variable that is wrong, or misspelt."""
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        raise SettingsError(explain(error)) from None
    if wrong := misspelt(os.environ):
        raise SettingsError("\n".join(f"{name} is not a setting; {meant} is" for name, meant in wrong.items()))
    if settings.model is None and settings.engine != "fake":
        raise SettingsError(
            f"{PREFIX}MODEL is not set: give the path of a GGUF model file, e.g. {PREFIX}MODEL=model.gguf"
        )
    return settings


def explain(error: ValidationError) -> str:
    """One line a variable: its name, the value given, and what is wrong with it."""
    lines = []
    for item in error.errors():
        name = PREFIX + ".".join(str(part) for part in item["loc"]).upper()
        lines.append(f"{name}={item['input']!r}: {item['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Variables that are no settings but look like one: name -> the setting that was probably meant."""
    known = [f"{PREFIX}{name.upper()}" for name in WorkerSettings.model_fields]
    unknown = [name for name in names if name.startswith(PREFIX) and name not in known]
    return {name: close[0] for name in unknown if (close := get_close_matches(name, known, n=1, cutoff=0.9))}
