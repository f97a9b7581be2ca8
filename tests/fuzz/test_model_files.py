"""Model files changed at random are refused with a ModelError, or run; the process survives all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.mutations import read

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
SECONDS = 10


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.stem)
def test_the_corpus_is_read(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert read(copy) == ("no model" if path.stem == "nested" else "ran")


def test_changed_files_never_end_the_process(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "mutations.py"), str(CORPUS), str(tmp_path), "1", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60, check=False)
    culprit = tmp_path / "reading.gguf"
    assert done.returncode == 0, f"ended with {done.returncode} at {culprit}:\n{done.stdout}{done.stderr[-3000:]}"
    ends = json.loads(done.stdout)
    print(ends)
    assert ends["files"] > 100
    assert ends["refused"] > 10
    assert ends["ran"] > 5, "the changes are too coarse to come past the header"
