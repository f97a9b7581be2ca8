"""What the README says is so: its example runs, its table is the settings, its commands and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.schemas.jobs import HOW_TO_RUN
from tokenloom.worker.command import value_text
from tokenloom.worker.settings import PREFIX, WorkerSettings
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def example() -> str:
    (block,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    assert isinstance(block, str)
    return block


def test_the_example_has_15_lines_at_most() -> None:
    assert len(example().splitlines()) <= 15


def test_the_example_runs_and_does_what_is_said_of_it(
    valkey: ValkeyServer, make_worker: Callable[..., WorkerProcess], model_path: Path
) -> None:
    make_worker(model=model_path)
    code = example()
    assert code.count('"redis://localhost:6379/0"') == 1
    code = code.replace("redis://localhost:6379/0", valkey.tcp_url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer, rest = done.stdout.split("\n1: ")
    first, rest = rest.split("\n2: ")
    second, again = rest.split("\nagain: ")
    assert answer.strip()
    assert first.strip() != second.strip(), "clones say different things"
    assert again.strip()
    assert answer.strip().endswith(again.strip()), "a rewound session says the same again"


def test_the_table_lists_every_setting_with_its_default_and_meaning() -> None:
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| (.*?) ?\| (.+) \|$", README, re.MULTILINE)
    expected = []
    for name, field in WorkerSettings.model_fields.items():
        default = field.get_default()
        expected.append((PREFIX + name.upper(), "" if default is None else value_text(default), field.description))
    assert rows == expected


def test_the_worker_is_run_as_everywhere_else() -> None:
    assert f"\n{HOW_TO_RUN}\n" in README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """Names such as `worker/store.py`, where one of the repository's folders comes first."""
    folders = "schemas|producer|worker|native_ext|tests|docs|examples|benchmarks"
    for name in re.findall(rf"`(?:python )?((?:{folders})/[\w./*]+)`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), f"{page.name}: {name}"
