from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenloom.schemas.events import EVENT_TYPES
from tokenloom.schemas.export import document, write
from tokenloom.schemas.records import RESULTS
from tokenloom.schemas.requests import REQUESTS


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(references(value) for value in schema.values()))
    return set().union(*(references(value) for value in schema)) if isinstance(schema, list) else set()


def test_the_document_has_every_model_and_every_reference_resolves() -> None:
    whole = json.loads(json.dumps(document()))
    assert set(whole["jobs"]) == set(REQUESTS)
    assert set(whole["events"]) == set(EVENT_TYPES)
    assert set(whole["results"]) == set(RESULTS)
    assert set(whole["records"]) == {"step", "other"}
    for reference in references(whole):
        assert reference.removeprefix("#/$defs/") in whole["$defs"]
    step = whole["$defs"]["StepRequest"]
    assert step["additionalProperties"] is False
    assert step["properties"]["v"]["const"] == 1
    assert whole["$defs"]["Generation"]["properties"]["logit_bias"]["anyOf"][0]["maxProperties"] == 4096


def test_each_file_stands_alone(tmp_path: Path) -> None:
    paths = write(tmp_path / "new" / "folder")
    names = {path.stem for path in paths}
    assert {"tokenloom", "StepRequest", "TokensEvent", "StepRecord", "CloseResult"} <= names
    for path in paths:
        schema = json.loads(path.read_text(encoding="utf-8"))
        for reference in references(schema):
            assert reference.removeprefix("#/$defs/") in schema["$defs"], path
