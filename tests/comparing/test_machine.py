"""What a comparison finds out about the machine, and how it waits for a side to rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.comparing.compiler import compiled
from benchmarks.comparing.forcing import hidden
from benchmarks.comparing.machine import machine
from benchmarks.roofline import peaks
from benchmarks.sides.handle import Side, computes

#: A thread that goes on after the answer, as those that watch for work do, until it says that it rests.
WATCHER = """
import sys, threading, time
def watch():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    open(sys.argv[1], "w").close()
    time.sleep(600)
threading.Thread(target=watch).start()
print("an answer", flush=True)
"""


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WATCHER, str(tmp_path / "rests")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_side_has_settled_when_no_thread_of_it_runs(watcher: subprocess.Popen[str], tmp_path: Path) -> None:
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "an answer\n"
    assert computes(watcher.pid)
    side = Side.__new__(Side)
    side._process = watcher  # type: ignore[assignment]
    side.settle(0.05)
    assert not (tmp_path / "rests").exists()
    side.settle(120)
    assert (tmp_path / "rests").exists()
    assert not computes(watcher.pid)


def test_peaks_are_of_the_sets_that_a_cpu_shows(tmp_path: Path) -> None:
    """With AVX-512 hidden, where it can be: then no peak of what no side may use."""
    flags = machine()["flags"]
    try:
        environment, shown = hidden(tmp_path), {"avx2"} & set(flags)
    except RuntimeError:
        environment = {}
        shown = {"avx512_vnni", "avx_vnni", "avx2"} & set(flags)
    [row] = peaks([1], "all", environment)
    assert row["threads"] == 1
    assert set(row["products"]) == shown
    assert set(row["fma"]) == {"plain"} | ({"avx2"} & set(flags)) | ({"avx512"} if "avx512_vnni" in shown else set())
    assert all(value > 0 for value in (*row["products"].values(), *row["fma"].values(), row["l2"], row["memory"]))


def test_what_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "bad.cpp"
    source.write_text("int main() { return nothing; }\n")
    with pytest.raises(RuntimeError, match=r"bad\.cpp does not build: .*"):
        compiled(source, tmp_path / "bad")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler for bad\.cpp"):
        compiled(source, tmp_path / "bad")
