"""Finding and loading the engine a worker was told to run."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

from tokenloom.native_ext.engine import ENTRY_POINT_GROUP, Engine, EngineSettings

from .settings import PREFIX, SettingsError, WorkerSettings


def load_engine(settings: WorkerSettings) -> Engine:
    """The engine of the settings, loaded. Raises SettingsError for an unknown one, ModelError for a bad file."""
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    entry = found.get(settings.engine)
    if entry is None:
        raise SettingsError(f"{PREFIX}ENGINE={settings.engine!r}: not installed; there are {', '.join(sorted(found))}")
    os.environ[f"{PREFIX}KERNELS"] = settings.kernels  # where engines look for it, however it was spelt
    engine: Engine = entry.load()(
        EngineSettings(
            model=settings.model or Path(),
            kv_bytes=settings.kv_bytes,
            kv_type=settings.kv_type,
            threads=settings.threads,
            max_batch_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
        )
    )
    if settings.single_sequence:
        from tokenloom.native_ext.single import SingleSequence

        return SingleSequence(engine)
    return engine
