"""Finding and loading the engine a worker was told to run."""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path

from tokenloom.native_ext.engine import ENTRY_POINT_GROUP, Engine, EngineError, EngineSettings

from .logs import printable
from .settings import PREFIX, SettingsError, WorkerSettings

log = logging.getLogger("rq.worker")


def load_engine(settings: WorkerSettings) -> Engine:
    """The engine of the settings, loaded.

    Raises SettingsError for an unknown one and for a setting that it refuses, ModelError for a bad file.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    entry = found.get(settings.engine)
    if entry is None:
        raise SettingsError(f"{PREFIX}ENGINE={settings.engine!r}: not installed; there are {', '.join(sorted(found))}")
    os.environ[f"{PREFIX}KERNELS"] = settings.kernels  # where engines look for it, however it was spelt
    os.environ[f"{PREFIX}PACKED_CACHE"] = settings.packed_cache
    wanted = EngineSettings(
        model=settings.model or Path(),
        kv_bytes=settings.kv_bytes,
        kv_type=settings.kv_type,
        threads=settings.threads,
        max_batch_tokens=settings.max_batch_tokens,
        max_sequences=settings.max_sequences,
    )
    try:
        engine: Engine = entry.load()(wanted)
    except EngineError as error:
        raise _by_variable(error) from None
    what = engine.geometry
    log.info(
        "tokenloom: model %s: context of %d tokens, threads %d, cells of %d tokens at most",
        printable(what.name or str(wanted.model)),
        what.context,
        what.threads,
        what.max_pages * what.page_size,
    )
    if settings.single_sequence:
        from tokenloom.native_ext.single import SingleSequence

        return SingleSequence(engine)
    return engine


def _by_variable(error: EngineError) -> Exception:
    """The engine's error; one about a setting begins with its name, and becomes a SettingsError about the variable."""
    name, _, rest = str(error).partition(" ")
    if name not in {field.name for field in fields(EngineSettings)}:
        return error
    return SettingsError(f"{PREFIX}{name.upper()} {rest}")
