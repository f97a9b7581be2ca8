"""What a user gets wrong first: each mistake is told in a line that says what to do, and no traceback."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokenloom.producer import Client, ContextFull, InvalidRequest, NoSuchSession, RedisUnavailable, WorkerFailed
from tokenloom.schemas.jobs import HOW_TO_RUN
from worker_process import SERIALIZER, WORKER_CLASS, WorkerProcess, rq_command

NOBODY = "redis://127.0.0.1:1/0"
MakeWorker = Callable[..., WorkerProcess]


def run(*command: str | Path, **environment: object) -> tuple[int, str]:
    """Exit code, and all that was printed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLOOM_", "RQ_", "REDIS_"))}
    given = {name: str(value) for name, value in environment.items()}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**inherited, **given},
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def rq_worker(url: str, *options: str, **environment: object) -> tuple[int, str]:
    """`rq worker` as the README has it."""
    return run(
        rq_command(), "worker", "-w", WORKER_CLASS, "-S", SERIALIZER, "-u", url, *options, "steps", **environment
    )


def tokenloom(*arguments: str, **environment: object) -> tuple[int, str]:
    return run(Path(sys.executable).with_name("tokenloom"), *arguments, **environment)


# -- starting a worker -------------------------------------------------------------------------------------------------


def test_no_redis_for_a_worker(model_path: Path) -> None:
    code, said = rq_worker(NOBODY, TOKENLOOM_MODEL=model_path)
    assert (code, len(said.splitlines())) == (1, 1)
    assert "127.0.0.1:1. Connection refused" in said, "RQ's own line, before any of ours runs"
    code, said = tokenloom("worker", "--url", NOBODY, TOKENLOOM_MODEL=model_path, TOKENLOOM_REDIS_WAIT=0)
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith(f"Error: no Redis at {NOBODY}")
    assert said.endswith("start one, for example with `valkey-server`, or name another with --url or RQ_REDIS_URL")


@pytest.mark.parametrize("environment", [{}, {"TOKENLOOM_MODEL": ""}], ids=["unset", "empty"])
def test_no_model_set(redis_url: str, environment: dict[str, str]) -> None:
    code, said = rq_worker(redis_url, **environment)
    assert code == 1
    assert said == (
        "tokenloom: TOKENLOOM_MODEL is not set: give the path of a GGUF model file, e.g. TOKENLOOM_MODEL=model.gguf"
    )


def test_a_model_file_that_is_not_there(redis_url: str) -> None:
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL="/no/such/model.gguf")
    assert code == 1
    assert said == "tokenloom: /no/such/model.gguf: cannot open the model file: No such file or directory"


def test_a_folder_instead_of_a_model_file(redis_url: str, tmp_path: Path) -> None:
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL=tmp_path)
    assert code == 1
    assert said == f"tokenloom: {tmp_path}: not a regular file; a GGUF model file is needed"


def test_a_path_that_is_not_gguf(redis_url: str, tmp_path: Path) -> None:
    wrong = tmp_path / "model.safetensors"
    wrong.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL=wrong)
    assert code == 1
    assert said == f"tokenloom: {wrong}: not a GGUF file: it does not start with the bytes 'GGUF'"


def test_a_download_that_broke_off(redis_url: str, tmp_path: Path, model_path: Path) -> None:
    part = tmp_path / "model.gguf"
    with model_path.open("rb") as whole:
        part.write_bytes(whole.read(4 << 20))
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL=part)
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith(f"tokenloom: {part}: truncated: ")


def test_a_python_without_the_gil(redis_url: str, model_path: Path, tmp_path: Path) -> None:
    """What such a build says of itself, said here by one with the GIL: the native module refuses before it loads."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig\n"
        "known = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else known(name)\n"
    )
    code, said = rq_worker(redis_url, "--burst", TOKENLOOM_MODEL=model_path, PYTHONPATH=tmp_path)
    assert code == 1
    assert said == (
        f"tokenloom: this is a free-threaded build of Python {platform.python_version()}, which tokenloom does not run"
        f" on: use an ordinary build, such as python3.{sys.version_info.minor}"
    )


def test_a_worker_without_the_serializer(redis_url: str, model_path: Path) -> None:
    code, said = run(rq_command(), "worker", "-w", WORKER_CLASS, "-u", redis_url, "steps", TOKENLOOM_MODEL=model_path)
    assert code == 1
    assert said.splitlines() == [
        "tokenloom: this worker reads msgpack only, and RQ's default is pickle. Start it with:",
        f"  {HOW_TO_RUN}",
    ]


def test_an_unknown_engine(redis_url: str, model_path: Path) -> None:
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL=model_path, TOKENLOOM_ENGINE="cuda")
    assert code == 1
    assert said == "tokenloom: TOKENLOOM_ENGINE='cuda': not installed; there are fake, ggml"


def test_less_memory_than_the_models_smallest_piece_of_cells(redis_url: str, model_path: Path) -> None:
    code, said = rq_worker(redis_url, TOKENLOOM_MODEL=model_path, TOKENLOOM_KV_BYTES="1M")
    assert code == 1
    assert said == (
        "tokenloom: TOKENLOOM_KV_BYTES is 1048576; this model needs at least 1474560, one page of 64 tokens"
    )


def test_settings_that_are_wrong_or_misspelt(redis_url: str) -> None:
    code, said = rq_worker(redis_url, TOKENLOOM_KV_BYTES="lots", TOKENLOOM_LEASE="0.6")
    assert code == 1
    size, lease = said.splitlines()
    assert size.startswith("tokenloom: TOKENLOOM_KV_BYTES='lots': 'lots' is not a size: write a number of bytes, or ")
    assert lease == "TOKENLOOM_LEASE='0.6': must be at least twice TOKENLOOM_HEARTBEAT (0.5 s)"
    code, said = rq_worker(redis_url, TOKENLOOM_ENGINE="fake", TOKENLOOM_KVBYTES="1G")
    assert (code, said) == (1, "tokenloom: TOKENLOOM_KVBYTES is not a setting; TOKENLOOM_KV_BYTES is")


def test_a_name_that_a_living_worker_has(redis_url: str, make_worker: MakeWorker) -> None:
    make_worker(name="taken", engine="fake")
    code, said = rq_worker(redis_url, "--name", "taken", TOKENLOOM_ENGINE="fake")
    assert code == 1
    assert "There exists an active worker named 'taken' already" in said


# -- producing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


def test_no_redis_for_a_producer() -> None:
    with pytest.raises(RedisUnavailable, match=rf"^no Redis at {NOBODY} .+: start one, .+, or name another"):
        Client(NOBODY).open()


@pytest.mark.parametrize("command", [("chat",), ("tail", "some-session"), ("sessions",)])
def test_no_redis_for_a_command(command: tuple[str, ...]) -> None:
    code, said = tokenloom(*command, RQ_REDIS_URL=NOBODY)
    assert (code, len(said.splitlines())) == (1, 1)
    assert said.startswith(f"Error: no Redis at {NOBODY} ")
    assert "start one" in said


def test_no_worker(client: Client) -> None:
    with pytest.raises(TimeoutError, match="no tokenloom worker is alive: start one with `rq worker -w tokenloom"):
        client.open(timeout=1)


def test_jobs_taken_by_a_stock_worker(client: Client, redis_url: str) -> None:
    step = client.session("s").step("hello")
    run(rq_command(), "worker", "--burst", "-u", redis_url, "steps")
    with pytest.raises(WorkerFailed) as caught:
        step.result(10)
    assert HOW_TO_RUN in caught.value.body.message


def test_jobs_taken_by_a_stock_worker_with_our_serializer(client: Client, redis_url: str) -> None:
    step = client.session("s").step("hello")
    run(rq_command(), "worker", "--burst", "-S", SERIALIZER, "-u", redis_url, "steps")
    with pytest.raises(WorkerFailed) as caught:
        step.result(10)
    assert HOW_TO_RUN in caught.value.body.message


def test_a_prompt_longer_than_the_context(client: Client, make_worker: MakeWorker) -> None:
    make_worker(engine="fake", fake_context=64)
    session = client.open("s")
    session.step("x" * 60, max_tokens=0).result(10)
    with pytest.raises(ContextFull) as caught:
        session.step("y" * 10).result(10)
    said = caught.value.body
    assert said.message == "60 tokens in session 's' and 10 appended are 70; the model's context is 64"
    assert (said.field, said.value, said.limit) == ("tokens", "70", "64")
    assert session.length() == 60


def test_sessions_that_are_not_there(client: Client, make_worker: MakeWorker) -> None:
    make_worker(engine="fake")
    with pytest.raises(NoSuchSession, match="session 'nobody' does not exist: open it first"):
        client.session("nobody").step("hello").result(10)
    session = client.open("gone")
    session.close()
    with pytest.raises(NoSuchSession, match="session 'gone' is closed: open it again"):
        session.step("hello").result(10)
    with pytest.raises(InvalidRequest, match="session 'empty' is empty and the step appends nothing"):
        client.open("empty").step().result(10)


def test_arguments_that_are_wrong(client: Client) -> None:
    session = client.session("s")
    with pytest.raises(TypeError, match=r"'temprature'; sampling settings are .*temperature"):
        session.step("hello", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"generation\.temperature: -1 is not accepted; 0 or more"):
        session.step("hello", temperature=-1)
    with pytest.raises(InvalidRequest, match="session: 'a b' is not accepted; 1-128 characters: letters, digits and"):
        client.open("a b")
    with pytest.raises(InvalidRequest, match="give at most one of tokens, text and messages, not tokens and text"):
        session.step("hello", tokens=[1])
