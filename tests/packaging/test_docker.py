"""The compose file and the Dockerfile: valid, consistent, and their commands are ones that run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import redis as redis_py
import yaml

from valkey_server import find_binary, free_port
from worker_process import rq_command

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return loaded


def test_compose_file_follows_the_compose_specification() -> None:
    parsed = compose_spec.PyCompose.from_yaml(COMPOSE.read_text())
    parsed.validate()
    assert set(parsed.service_names()) == {"valkey", "worker", "demo"}


def test_named_volumes_are_declared(services: dict[str, Any]) -> None:
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    used = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert used == declared


def test_sessions_survive_a_restart_of_the_server(services: dict[str, Any]) -> None:
    options = shlex.split(services["valkey"]["command"])
    assert options[options.index("--appendonly") + 1] == "yes"
    assert options[options.index("--appendfsync") + 1] == "everysec"
    assert any(volume.endswith(":/data") for volume in services["valkey"]["volumes"])


def test_worker_may_finish_its_steps_before_it_is_killed(services: dict[str, Any]) -> None:
    worker = services["worker"]
    assert float(worker["stop_grace_period"].removesuffix("s")) > float(worker["environment"]["TOKENLOOM_GRACE"])


def test_image_and_compose_run_the_same_worker(services: dict[str, Any]) -> None:
    command = shlex.split(services["worker"]["command"])
    at = command.index("--name")
    del command[at : at + 2]
    (default,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert json.loads(default) == command


def test_dockerfile_has_no_errors() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run(
        [hadolint, "--failure-threshold", "error", DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_dockerfile_copies_files_that_exist_and_are_sent_to_the_build() -> None:
    sources = [
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE.read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "pyproject.toml" in sources
    sent = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in sent


def test_image_is_built_with_the_locked_versions() -> None:
    """Which of the two variables pip goes by for what builds has changed."""
    before, _, _ = DOCKERFILE.read_text().partition("RUN pip wheel")
    for variable in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert re.search(rf"\b{variable}=/src/constraints\.txt\b", before), variable
    assert re.search(r"^WORKDIR /src\nCOPY .*\bconstraints\.txt\b.* \./$", before, re.MULTILINE)


def test_worker_command_is_one_that_rq_understands(services: dict[str, Any]) -> None:
    program, *options = shlex.split(services["worker"]["command"])
    assert program == "rq"
    shown = subprocess.run([rq_command(), *options, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "Starts an RQ worker." in shown.stdout


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of the test, killed when it ends."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def test_compose_commands_work_together_outside_docker(
    services: dict[str, Any], running: list[subprocess.Popen[bytes]], tmp_path: Path, model_path: Path
) -> None:
    """The three commands with their own environments; only addresses, paths and programs are those of here."""
    port = free_port()
    here = {
        "redis://valkey:6379/0": f"redis://127.0.0.1:{port}/0",
        "/models/smollm2-135m-instruct.gguf": str(model_path),
        "valkey-server": find_binary(),
        "rq": rq_command(),
        "python": sys.executable,
        "/examples/producer.py": str(ROOT / "examples" / "producer.py"),
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENLOOM_", "RQ_", "REDIS_"))}

    def start(name: str, *more: str) -> subprocess.Popen[bytes]:
        command = [here.get(part, part) for part in shlex.split(services[name]["command"])]
        environment = {k: here.get(v, v) for k, v in services[name].get("environment", {}).items()}
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *more],
                env={**inherited, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        running.append(process)
        return process

    def said(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text(errors="replace")

    start("valkey", "--port", str(port), "--dir", str(tmp_path))
    with redis_py.Redis.from_url(here["redis://valkey:6379/0"]) as client:
        until = time.monotonic() + 20
        while True:
            try:
                assert client.ping()
                break
            except redis_py.ConnectionError:
                assert time.monotonic() < until, said("valkey")
                time.sleep(0.02)
    worker = start("worker")
    demo = start("demo")
    assert demo.wait(120) == 0, said("demo") + said("worker")
    assert said("demo").count("tokens, ended by") == 2
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(float(services["worker"]["stop_grace_period"].removesuffix("s"))) == 0, said("worker")
