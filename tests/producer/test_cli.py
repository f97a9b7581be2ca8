"""The `tokenloom` command as people use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from redis import Redis

from tokenloom.producer import cli
from tokenloom.schemas import (
    AppendedEvent,
    CloneResult,
    ClosedEvent,
    ErrorBody,
    FinishedEvent,
    OpenedEvent,
    OpenResult,
    RewindResult,
    TokensEvent,
    Usage,
)

Start = Callable[..., None]

#: Before 8.2, click's runner puts what is said on stderr into stdout unless it is told.
RUNNER = {} if version("click") >= "8.2" else {"mix_stderr": False}


@pytest.fixture
def run(redis_url: str) -> Callable[..., Result]:
    def run(*arguments: str, input: str | None = None, url: str = redis_url) -> Result:
        runner = CliRunner(env={"RQ_REDIS_URL": url}, **RUNNER)
        return runner.invoke(cli.main, arguments, input=input, catch_exceptions=False)

    return run


def shown(result: Result) -> str:
    return result.stdout + result.stderr


def test_schema_prints_one_document_or_writes_files(run: Callable[..., Result], tmp_path: Path) -> None:
    printed = json.loads(run("schema").output)
    assert "tokenloom.schemas.jobs.step" in printed["jobs"]
    assert run("schema", "--out", str(tmp_path)).exit_code == 0
    assert json.loads((tmp_path / "tokenloom.json").read_text()) == printed


def test_tail_prints_text_as_it_comes_and_what_else_happened(run: Callable[..., Result], worker: Any) -> None:
    worker.emit("a", "j1", OpenedEvent, seed=5)
    worker.step("a", "j2", ["Hel", "lo"])
    worker.emit("a", "j3", ClosedEvent)
    output = run("tail", "a").output
    assert "opened j1] seed 5" in output
    assert "\nHello\n" in output
    assert "finished j2] stop, 2 generated, length 3" in output
    assert run("tail", "a", "--text").stdout == "Hello\n"


def test_tail_says_where_a_character_was_cut(run: Callable[..., Result], worker: Any) -> None:
    usage = Usage(appended=0, generated=1)
    worker.emit("a", "one", TokensEvent, position=0, tokens=[1], text="x")
    worker.emit("a", "one", FinishedEvent, reason="length", length=1, usage=usage, pending=2)
    worker.emit("a", "two", AppendedEvent, position=1, tokens=[1, 2], before="\ufffd")
    worker.emit("a", "three", ClosedEvent)
    output = run("tail", "a").output
    assert "1 generated, length 1, 2 bytes of a character pending\n" in output
    assert "2 tokens at 1, in the middle of a character\n" in output


def test_tail_as_json_has_every_event_with_its_id(run: Callable[..., Result], worker: Any) -> None:
    ids = [worker.emit("a", "j1", OpenedEvent, seed=5), worker.emit("a", "j3", ClosedEvent)]
    lines = [json.loads(line) for line in run("tail", "a", "--json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert [line["type"] for line in lines] == ["opened", "closed"]
    (last,) = run("tail", "a", "--json", "--from", ids[0]).stdout.splitlines()
    assert json.loads(last)["id"] == ids[1]


def test_sessions_are_a_table(run: Callable[..., Result], worker: Any, redis: Redis) -> None:
    assert run("sessions").output == "no sessions\n"
    redis.zadd(worker.keys.sessions, {"a": 1000})
    redis.hset(worker.keys.session("a"), mapping={"length": 7, "state": "open", "owner": "w1#x", "created": 900})
    head, row = run("sessions").output.splitlines()
    assert head.split() == ["SESSION", "LENGTH", "STATE", "OWNER", "USED", "AGE", "PARENT"]
    assert row.split()[:4] == ["a", "7", "open", "w1"]
    assert json.loads(run("sessions", "--json").output)["length"] == 7


def test_chat_streams_rewinds_clones_and_quits(
    run: Callable[..., Result], worker: Any, redis: Redis, background: Start
) -> None:
    key = worker.keys.session("a")
    seen: list[Any] = []

    def work() -> None:
        worker.succeed(worker.claim(), OpenResult(session="a", seed=1, length=0, created=True))
        for _ in range(2):
            step = worker.claim()
            seen.append(step.kwargs)
            base = int(redis.hget(key, "length") or 0)
            redis.hset(key, "length", base + 3)
            worker.step("a", step.id, ["Hel", "lo"], base=base)
        failing = worker.claim()
        error = ErrorBody(code="context_full", message="the context is full")
        usage = Usage(appended=0, generated=0)
        worker.emit("a", failing.id, FinishedEvent, reason="error", length=6, usage=usage, error=error)
        worker.fail(failing, "x")
        rewind = worker.claim()
        seen.append(rewind.kwargs["to"])
        worker.succeed(rewind, RewindResult(session="a", length=6))
        clone = worker.claim()
        worker.succeed(clone, CloneResult(session="a", targets=clone.kwargs["targets"], seeds=[1], length=6))

    background(work)
    typed = "hi\nmore\n\nthis fails\n/rewind\n/rewind x\n/clone\n/length\n/what\n/quit\nnever sent\n"
    result = run("chat", "--session", "a", "--system", "be brief", "--max-tokens", "9", input=typed)
    assert result.exit_code == 0
    assert "Hello\nHello\n" in shown(result)
    assert "the context is full" in shown(result)
    assert "takes a number" in shown(result)
    assert "continuing in a~" in shown(result)
    assert "/rewind N" in shown(result)
    first, second, to = seen
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert second["messages"] == [{"role": "user", "content": "more"}]
    assert first["generation"] == {"max_tokens": 9}
    assert to == 6


def test_chat_ends_with_its_input(run: Callable[..., Result], worker: Any, background: Start) -> None:
    background(lambda: worker.succeed(worker.claim(), OpenResult(session="a", seed=1, length=0, created=True)))
    assert run("chat", "--session", "a", input="").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "url", "message"),
    [
        (["sessions"], "redis://127.0.0.1:1/0", "no Redis at redis://127.0.0.1:1/0"),
        (["chat"], "redis://127.0.0.1:1/0", "no Redis at"),
        (["sessions"], "nonsense", "'nonsense' is not a Redis URL"),
        (["tail", "a", "--from", "x"], None, "'x' is not a stream id"),
        (["tail", "a b"], None, "'a b' is no id for a session; 1-128 characters"),
        (["chat", "--session", "a b"], None, "1-128 characters"),
    ],
)
def test_a_mistake_is_one_clear_line(
    run: Callable[..., Result], redis_url: str, arguments: list[str], url: str | None, message: str
) -> None:
    result = run(*arguments, url=url or redis_url)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\nError: ") + result.stderr.startswith("Error: ") == 1
    assert "Traceback" not in shown(result)


def test_commands_of_others_are_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Entry(EntryPoint):
        def load(self) -> Any:
            loaded.append(self.name)
            if self.name == "broken":
                raise ImportError("no module named x")

            @click.command()
            def other() -> None:
                """Does other things."""
                click.echo("done")

            return other

    entries = [Entry(name, "m:f", cli.GROUP) for name in ("other", "broken")]
    monkeypatch.setattr(
        cli, "entry_points", lambda group, name=None: [entry for entry in entries if name in (None, entry.name)]
    )
    assert CliRunner().invoke(cli.main, ["schema"]).exit_code == 0
    assert loaded == []
    assert CliRunner().invoke(cli.main, ["other"]).output == "done\n"
    help_text = CliRunner().invoke(cli.main, ["--help"]).output
    assert "Does other things." in help_text
    assert "chat" in help_text
    failed = CliRunner().invoke(cli.main, ["broken", "--any", "thing"])
    assert failed.exit_code == 1
    assert "cannot be loaded: no module named x" in failed.output
    assert CliRunner().invoke(cli.main, ["unknown"]).exit_code == 2


def test_the_module_can_be_run() -> None:
    code = "from tokenloom.producer.cli import main; main(['schema'])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output)["version"] == 1
