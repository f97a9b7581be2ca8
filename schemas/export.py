"""JSON Schema of everything on the wire, for producers and readers in other languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .base import WIRE_VERSION
from .events import EVENT_TYPES
from .records import RESULTS, JobRecord, StepRecord
from .requests import REQUESTS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document() -> dict[str, Any]:
    """One JSON Schema document (draft 2020-12).

    ``$defs`` has every model by name. The maps beside it say what each is for: ``jobs`` gives the keyword arguments by
    function name, ``events`` the entries of a session's stream by ``type``, ``results`` what a finished job returns by
    operation, ``records`` the entries of a session's ``steps`` hash. The schemas are of the decoded msgpack, whose maps
    may have integer keys where JSON has decimal text.
    """
    models: list[type[BaseModel]] = [
        *REQUESTS.values(),
        *EVENT_TYPES.values(),
        *RESULTS.values(),
        StepRecord,
        JobRecord,
    ]
    _, definitions = models_json_schema([(model, "validation") for model in models])
    return {
        "$schema": DIALECT,
        "title": f"tokenloom wire contract, version {WIRE_VERSION}",
        "version": WIRE_VERSION,
        "jobs": {function: _ref(model) for function, model in REQUESTS.items()},
        "events": {kind: _ref(model) for kind, model in EVENT_TYPES.items()},
        "results": {operation: _ref(model) for operation, model in RESULTS.items()},
        "records": {"step": _ref(StepRecord), "other": _ref(JobRecord)},
        "$defs": definitions["$defs"],
    }


def write(folder: Path) -> list[Path]:
    """Writes the document as ``tokenloom.json`` and each model as a file of its own that stands alone."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = document()
    contents = {"tokenloom": whole}
    for group in ("jobs", "events", "results", "records"):
        for reference in whole[group].values():
            name = reference["$ref"].rsplit("/", 1)[1]
            contents[name] = _alone(name, whole["$defs"])
    paths = []
    for name, schema in contents.items():
        path = folder / f"{name}.json"
        path.write_text(text(schema), encoding="utf-8")
        paths.append(path)
    return paths


def text(schema: dict[str, Any]) -> str:
    """The schema as indented JSON with a newline at its end."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _alone(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """One model's schema, with just the definitions it refers to."""
    needed: dict[str, Any] = {}
    waiting = [definitions[name]]
    while waiting:
        for reference in _references(waiting.pop()):
            if reference not in needed:
                needed[reference] = definitions[reference]
                waiting.append(definitions[reference])
    schema = {"$schema": DIALECT, **definitions[name]}
    if needed:
        schema["$defs"] = needed
    return schema


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["$ref"].rsplit("/", 1)[1]] if isinstance(schema.get("$ref"), str) else []
        return own + [name for value in schema.values() for name in _references(value)]
    if isinstance(schema, list):
        return [name for value in schema for name in _references(value)]
    return []
