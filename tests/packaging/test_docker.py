"""The compose file and the Dockerfile: valid, consistent, and their commands are ones that run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

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


def test_worker_command_is_one_that_rq_understands(services: dict[str, Any]) -> None:
    program, *options = shlex.split(services["worker"]["command"])
    assert program == "rq"
    shown = subprocess.run([rq_command(), *options, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "Starts an RQ worker." in shown.stdout
