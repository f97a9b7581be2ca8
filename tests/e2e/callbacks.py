"""Callbacks that jobs of the tests bring; a worker may import them when its PYTHONPATH has the folder `tests`."""

from __future__ import annotations

from typing import Any

from redis import Redis

NOTES = "notes-of-callbacks"


def succeeded(job: Any, connection: Redis, result: Any) -> None:
    connection.rpush(NOTES, f"succeeded {job.id} {result['reason']}")


def failed(job: Any, connection: Redis, kind: Any, value: Any, traceback: Any) -> None:
    connection.rpush(NOTES, f"failed {job.id} {kind.__name__}")


def forbidden(job: Any, connection: Redis, *_: Any) -> None:
    connection.rpush(NOTES, f"forbidden {job.id}")
