"""What `pip install tokenloom` puts where, and what importing it costs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "producer", "worker", "native_ext")
INSTALLED = distribution("tokenloom")


def test_everything_lands_in_the_namespace() -> None:
    files = [Path(str(file)) for file in INSTALLED.files or []]
    elsewhere = [f for f in files if f.parts[0] not in {"tokenloom", f"tokenloom-{INSTALLED.version}.dist-info"}]
    assert [f.name for f in elsewhere] == ["tokenloom"], "only the command may live outside"
    assert {f.parts[1] for f in files if f.parts[0] == "tokenloom"} == set(PACKAGES), "and no tokenloom/__init__.py"


def test_no_sources_of_the_native_module_and_types_are_marked() -> None:
    files = {str(file) for file in INSTALLED.files or []}
    assert not [f for f in files if f.startswith("tokenloom/native_ext/src")]
    assert {f"tokenloom/{package}/py.typed" for package in PACKAGES} <= files


def test_ggml_is_pinned_to_one_version_at_build_and_run_time() -> None:
    build = re.search(r'^requires = .*"libggml-python==([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    run = [r for r in INSTALLED.requires or [] if r.startswith("libggml-python")]
    assert build
    assert run == [f"libggml-python=={build[1]}"]


def test_metadata_names_licence_and_pythons() -> None:
    assert INSTALLED.metadata["License-Expression"] == "MIT"
    assert INSTALLED.metadata["Requires-Python"] == ">=3.10"
    classifiers = INSTALLED.metadata.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)} <= set(classifiers)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("tokenloom.engines", "ggml"),
        ("tokenloom.engines", "fake"),
        ("tokenloom.commands", "worker"),
        ("console_scripts", "tokenloom"),
    ],
)
def test_entry_points_load(group: str, name: str) -> None:
    (found,) = [entry for entry in entry_points(group=group) if entry.name == name]
    assert callable(found.load())


@pytest.mark.parametrize("package", ["tokenloom.schemas", "tokenloom.producer"])
def test_a_web_service_imports_nothing_heavy(package: str) -> None:
    heavy = ["numpy", "tokenizers", "jinja2", "tokenloom.native_ext", "tokenloom.worker"]
    code = f"import {package}, sys; print([name for name in {heavy} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_what_rq_is_told_to_load_exists() -> None:
    assert importlib.import_module("tokenloom.worker").BatchWorker
    assert importlib.import_module("tokenloom.schemas").MsgpackSerializer


def test_a_python_without_the_gil_is_told_before_anything_is_compiled(tmp_path: Path) -> None:
    """By the hook that pip calls first, told what such a build says of itself."""
    code = (
        "import sysconfig\n"
        "known = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: 't' if name == 'ABIFLAGS' else known(name)\n"
        "from scikit_build_core.build import prepare_metadata_for_build_wheel\n"
        f"prepare_metadata_for_build_wheel({str(tmp_path)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    said = "This is a free-threaded build of Python, which tokenloom does not run on: use an ordinary build."
    assert said in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
