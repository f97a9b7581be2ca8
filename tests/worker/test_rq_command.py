"""`tokenloom worker`: every setting is listed, and the rest is RQ's own command."""

from __future__ import annotations

import os
import subprocess
import sys

from click.testing import CliRunner
from redis import Redis

from job_tools import enqueue, status
from tokenloom.producer.cli import main
from tokenloom.schemas.jobs import HOW_TO_RUN
from tokenloom.worker.command import rq_arguments, worker
from tokenloom.worker.settings import WorkerSettings

FILLED_IN = ["worker", "-w", "tokenloom.worker.BatchWorker", "-S", "tokenloom.schemas.MsgpackSerializer"]


def test_help_lists_every_setting_with_default_and_meaning() -> None:
    shown = CliRunner().invoke(worker, ["--help"], terminal_width=400, max_content_width=400)
    assert shown.exit_code == 0
    for name, field in WorkerSettings.model_fields.items():
        line = next(line for line in shown.output.splitlines() if line.startswith(f"  TOKENLOOM_{name.upper()} "))
        assert str(field.description) in line
        assert ("[default: " in line) == ("(required)" not in line)
    assert "[default: 3.0]" in shown.output


def test_help_shows_the_command_in_one_line_to_be_copied() -> None:
    for command in (worker, main):
        shown = CliRunner().invoke(command, ["--help"])
        assert HOW_TO_RUN in [line.strip() for line in shown.output.splitlines()]


def test_arguments_are_rqs_and_the_queue_is_steps_unless_named() -> None:
    assert rq_arguments(()) == [*FILLED_IN, "steps"]
    assert rq_arguments(("--burst", "-u", "redis://x")) == [*FILLED_IN, "--burst", "-u", "redis://x", "steps"]
    assert rq_arguments(("-n", "a", "high", "low")) == [*FILLED_IN, "-n", "a", "high", "low"]


def test_it_runs_a_worker(redis: Redis, redis_url: str) -> None:
    enqueue(redis, "s", "j", function="tokenloom.schemas.jobs.open")
    command = [
        sys.executable,
        "-c",
        "from tokenloom.worker.command import worker; worker()",
        "-u",
        redis_url,
        "--burst",
    ]
    environment = {**os.environ, "TOKENLOOM_ENGINE": "fake"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert status(redis, "j") == "finished"
