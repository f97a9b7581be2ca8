"""The log: one JSON object a line when asked for, ids in fields of their own, and nothing a producer wrote unshown."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from hostile.arena import JOBS, enqueue, payload
from tokenloom.producer import Client, InvalidRequest
from tokenloom.worker import logs
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]


@pytest.fixture
def client(valkey: ValkeyServer, redis: Redis) -> Iterator[Client]:
    with Client(valkey.url) as made:
        yield made


def run_some(client: Client, redis: Redis) -> None:
    """A step that ends well, one that is refused, and a job nobody can read."""
    session = client.open("s", seed=1)
    session.step("hello", max_tokens=3, ignore_eos=True, step_id="good").result(20)
    with pytest.raises(InvalidRequest):
        session.step(tokens=[5000], max_tokens=1, step_id="bad").result(20)
    enqueue(redis, "ugly", b"\xc1", {"description": "two\nlines \x1b[31mred"})
    session.step("x", max_tokens=1, step_id="last").result(20)


def test_every_line_is_a_json_object(client: Client, redis: Redis, make_worker: MakeWorker) -> None:
    worker = make_worker(engine="fake", log="json", options=("--logging_level", "DEBUG", "--with-scheduler"))
    run_some(client, redis)
    assert worker.terminate() == 0
    records = [json.loads(line) for line in worker.output().splitlines()]
    for record in records:
        assert {"time", "level", "logger", "message", "worker"} <= set(record)
        assert record["time"].endswith("Z")
        assert record["level"] in ("debug", "info", "warning", "error")
    ours = [record for record in records if record["worker"] == worker.name]
    assert len(ours) > 20
    said = {record["message"]: record for record in ours}
    ended = said["tokenloom: step good of session s: length, 3 tokens"]
    assert (ended["session"], ended["job"], ended["step"], ended["reason"]) == ("s", "good", "good", "length")
    (refused,) = [record for record in ours if record["message"].startswith("tokenloom: job bad refused")]
    assert (refused["session"], refused["job"], refused["code"]) == ("s", "bad", "invalid")
    taken = [record for record in ours if record.get("job") == "ugly"]
    assert taken
    assert "two?lines ?[31mred" in taken[0]["message"]
    assert any("exception raised while executing" in record["message"] for record in ours)


def test_text_is_rqs_own_and_a_job_cannot_break_its_lines(
    client: Client, redis: Redis, make_worker: MakeWorker
) -> None:
    worker = make_worker(engine="fake")
    run_some(client, redis)
    enqueue(redis, "forged\n12:00:00 Worker w: all is well", payload(JOBS + "close", {"session": "s"}))
    client.session("s").step("x", max_tokens=1).result(20)
    assert worker.terminate() == 0
    output = worker.output()
    assert f"Worker {worker.name}: steps: Job OK (good)" in output
    assert "two?lines ?[31mred" in output
    assert "\x1b[31m" not in output
    assert not any(line.startswith("12:00:00 Worker w: all is well") for line in output.splitlines())


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_log_says_which_model_is_served_and_by_which_kernels(
    style: str, model_path: Path, make_worker: MakeWorker
) -> None:
    worker = make_worker(model=model_path, kernels="portable", log=style, threads=1, kv_bytes="3M")
    assert worker.terminate() == 0
    output = worker.output()
    assert output.count("tokenloom: matrices for kernels portable: 210 q4_1, 1 q8_0; for ggml: none") == 1
    assert output.count(": context of 8192 tokens, threads 1, cells of 128 tokens at most") == 1


def record_of(*arguments: Any, **more: Any) -> logging.LogRecord:
    return logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, *arguments, **more)


def test_a_record_keeps_what_came_with_it() -> None:
    extra = {"session": "s", "worker": "forged", "odd": {1, 2}.__class__}
    try:
        raise ValueError("why")
    except ValueError:
        record = record_of("%s\n\x1b[32;01mdone\x1b[39;49;00m", ("a",), sys.exc_info(), extra=extra)
    line = logs.JsonLines("w").format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["message"] == "a\ndone"
    assert (fields["worker"], fields["session"], fields["odd"]) == ("w", "s", "<class 'set'>")
    assert fields["exception"].endswith("ValueError: why")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\r\nc\0", "a?b??c?"),
        ("x" * 300, "x" * 200 + "…"),
        ("\x1b[31m\x9b\u2028", "?[31m??"),
        ("naïve 字", "naïve 字"),
    ],
)
def test_what_a_producer_wrote_is_shown_in_one_line(text: str, shown: str) -> None:
    assert logs.printable(text) == shown
