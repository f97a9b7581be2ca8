"""Packed weights kept in a file: the next load maps them, and never gets other numbers, whatever became of the file."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from native.tiny_llama import TinyLlama
from native.weights import PACKED, random_weights
from tokenloom.native_ext import ggml
from tokenloom.native_ext.engine import EngineSettings, Entry, ModelError
from tokenloom.native_ext.ggml import GgmlEngine, load
from tokenloom.native_ext.native import core

Logits = npt.NDArray[np.float32]
HEADER = 16 + 4 + 4 + 64 + 8 * 4
ROW = 8 * 6
FIRST = 512  # where the first matrix begins: behind 8 rows, at a multiple of 64

#: Digests of what is kept of a model of each type (``tiny``), by the number of the layouts. Whoever changes how
#: weights are packed raises kPackedLayout in packed_layout.h, so that files of the old layouts are refused, and puts
#: the new digests here.
LAYOUTS = {
    2: {
        "Q4_0": "2dfe8c0aa8be196c",
        "Q4_1": "cca5109a939afaed",
        "Q5_0": "62118450e4124d6e",
        "Q5_1": "92e4011dcb426d3c",
        "Q8_0": "a841b51f96ca00f1",
        "Q4_K": "11b63b5064aa7b67",
        "Q5_K": "e338a49623801b85",
        "Q6_K": "76376da8fd96b29b",
        "F16": "d74faaa28eadc241",
        "BF16": "973fe7ae25bf4f18",
        "F32": "df1ae279abb4cf0f",
    },
}


def tiny(path: Path, kind: str = "Q8_0", seed: int = 1) -> Path:
    """A model whose matrices are of the type, with random bits; groups of 32 do not divide all numbers of rows."""
    model = TinyLlama(layers=1, embedding=256, feed_forward=256, heads=4, kv_heads=2, head_size=64, seed=seed)
    rng = np.random.default_rng(seed)
    return model.write_as(path, kind, lambda data, kind: random_weights(rng, kind, *data.shape)[0])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model.gguf")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights are kept."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("TOKENLOOM_PACKED_CACHE", str(folder))
    return folder


@pytest.fixture
def notes() -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """What was logged of it since the last call: (level, message)."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Handler()
    logger, level = ggml.log, ggml.log.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def take() -> list[tuple[str, str]]:
        lines = [(r.levelname, r.getMessage()) for r in records if "packed weights" in r.getMessage()]
        records.clear()
        return lines

    yield take
    logger.setLevel(level)
    logger.removeHandler(handler)


def opened(model: Path) -> GgmlEngine:
    return load(EngineSettings(model=model, threads=1, kv_bytes=4 << 20))


def logits(model: Path) -> Logits:
    engine = opened(model)
    rows: Logits = engine.forward([Entry(engine.new(), list(range(40)), logits="all")])[0].logits
    engine.close()
    return rows


def only_file(folder: Path) -> Path:
    """The one file in the folder."""
    (file,) = folder.iterdir()
    return file


def test_the_number_of_the_layouts_stands_for_what_is_in_the_file(tmp_path: Path) -> None:
    found = {}
    for kind in PACKED:
        begin(tiny(tmp_path / "m.gguf", kind), None, tmp_path / kind)
        data = (tmp_path / kind).read_bytes()
        found[kind] = hashlib.sha256(data[FIRST:]).hexdigest()[:16]
    assert found == LAYOUTS[int.from_bytes(data[20:24], "little")]


@pytest.mark.parametrize("kind", PACKED)
def test_the_same_bits_without_a_file_with_a_new_one_and_with_a_kept_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, notes: Any
) -> None:
    path = tiny(tmp_path / "m.gguf", kind)
    monkeypatch.setenv("TOKENLOOM_PACKED_CACHE", "off")
    expected = logits(path)
    assert not list(folder.iterdir())
    assert notes() == []
    monkeypatch.setenv("TOKENLOOM_PACKED_CACHE", str(folder))
    for what in ("kept in", "mapped from", "mapped from"):
        assert np.array_equal(logits(path).view(np.uint32), expected.view(np.uint32))
        assert notes() == [("INFO", f"tokenloom: packed weights {what} {only_file(folder)}")]


def test_engines_share_the_files_pages(model: Path, folder: Path) -> None:
    engines = [opened(model) for _ in range(2)]
    file = only_file(folder)
    maps = re.findall(
        rf"^\S+ r--s .* (\d+) +{re.escape(str(file))}$", Path("/proc/self/maps").read_text(), re.MULTILINE
    )
    assert len(maps) == 2
    assert set(maps) == {str(file.stat().st_ino)}
    assert engines[0].stats.extra["packed_weight_bytes"] > 0


def test_beside_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_PACKED_CACHE", "beside")
    monkeypatch.chdir(model.parent)
    engine = opened(Path(model.name))
    name = f"model.gguf.{engine.geometry.fingerprint[:16]}.packed"
    assert sorted(p.name for p in model.parent.iterdir()) == ["model.gguf", name]


def flip(at: int) -> Callable[[bytearray], bytearray]:
    """Changes one bit of the byte there."""

    def damage(data: bytearray) -> bytearray:
        data[at] ^= 4
        return data

    return damage


DAMAGES: dict[str, tuple[Callable[[bytearray], bytearray], str]] = {
    "empty": (lambda data: data[:0], "cannot be mapped"),
    "header cut": (lambda data: data[:50], "cut short"),
    "table cut": (lambda data: data[: HEADER + 20], "bytes long"),
    "last byte missing": (lambda data: data[:-1], "bytes long"),
    "a byte too many": (lambda data: data + b"\0", "bytes long"),
    "other file": (lambda data: bytearray(b"GGUF") + data[4:], "no file of packed weights"),
    "other version": (flip(16), "version"),
    "other layouts": (flip(20), "version"),
    "other model": (flip(30), "header is damaged"),
    "other length": (flip(HEADER - 32), "header is damaged"),
    "other table": (flip(HEADER + ROW + 9), "table is damaged"),
    "first number": (flip(FIRST), "matrix 0 is damaged"),
    "last number": (flip(-100), "is damaged"),
    "zeros": (lambda data: bytearray(len(data)), "no file of packed weights"),
    "not written to its end": (lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2), "is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_written_anew(damage: str, model: Path, folder: Path, notes: Any) -> None:
    expected = logits(model)
    file = only_file(folder)
    change, why = DAMAGES[damage]
    before = file.read_bytes()
    file.write_bytes(change(bytearray(before)))
    notes()
    assert np.array_equal(logits(model), expected)
    ((level, note),) = notes()
    assert level == "WARNING"
    assert why in note
    assert f"is not used, for it{'s' if why in note.partition(' its ')[2] else ''}" in note
    assert only_file(folder).read_bytes() == before
    assert np.array_equal(logits(model), expected)
    assert notes()[0][1].startswith("tokenloom: packed weights mapped from")


def test_a_file_of_another_model_is_refused(tmp_path: Path, model: Path, folder: Path, notes: Any) -> None:
    """Of the same sizes, under this model's name."""
    expected = logits(model)
    file = only_file(folder)
    other = tiny(tmp_path / "other.gguf", seed=2)
    assert not np.array_equal(logits(other), expected)
    shutil.copy(next(p for p in folder.iterdir() if p.name.startswith("other")), file)
    notes()
    assert np.array_equal(logits(model), expected)
    assert "another model's" in notes()[0][1]


@pytest.mark.parametrize("where", ["missing", "a file", "a folder has the name"])
def test_a_place_that_cannot_be_written_costs_a_warning(
    where: str, model: Path, folder: Path, notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(model)
    if where == "a folder has the name":
        name = only_file(folder)
        name.unlink()
        (name / "within").mkdir(parents=True)
    else:
        monkeypatch.setenv("TOKENLOOM_PACKED_CACHE", str(model if where == "a file" else folder / "missing"))
    notes()
    assert np.array_equal(logits(model), expected)
    ((level, note),) = notes()
    assert level == "WARNING"
    assert "packed weights are not kept: cannot" in note
    assert not [p for p in folder.iterdir() if p.is_file() and p.name.endswith(".tmp")]


def test_a_full_disk_costs_a_warning(model: Path, folder: Path) -> None:
    """As a limit to the size of files, which fails in the middle of writing."""
    program = """
import logging, resource, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
engine = load(EngineSettings(model=Path(sys.argv[1]), threads=1, kv_bytes=4 << 20))
print(engine.forward([Entry(engine.new(), [1, 2], logits="all")])[0].logits.shape)
"""
    done = subprocess.run([sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True)
    assert "WARNING" in done.stdout
    assert "packed weights are not kept: cannot write" in done.stdout
    assert done.stdout.endswith("(2, 97)\n")
    assert not list(folder.iterdir())


def test_processes_that_write_at_the_same_time(model: Path, folder: Path) -> None:
    """All have the same bits, and one whole file is left."""
    program = """
import hashlib, sys
from pathlib import Path
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load
sys.stdin.read(1)
for _ in range(20):
    engine = load(EngineSettings(model=Path(sys.argv[1]), threads=1, kv_bytes=4 << 20))
    rows = engine.forward([Entry(engine.new(), list(range(40)), logits="all")])[0].logits
    print(hashlib.sha256(rows.tobytes()).hexdigest())
    for file in Path(sys.argv[2]).glob("*.packed"):
        file.unlink(missing_ok=True)
"""
    command = [sys.executable, "-c", program, str(model), str(folder)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("x")
        writer.stdin.close()
    printed = []
    for writer in writers:
        assert writer.stdout is not None
        printed += writer.stdout.read().split()
        assert writer.wait(60) == 0
    expected = hashlib.sha256(logits(model).tobytes()).hexdigest()
    assert printed == [expected] * 60
    assert only_file(folder).suffix == ".packed"


PACKS = """
import os, sys
from tokenloom.native_ext.native import core
def progress(done, total):
    print("packing" if done else "waiting", flush=True)
    if done and "slowly" in sys.argv:
        sys.stdin.read(1)
engine = core.Engine(
    os.fsencode(sys.argv[1]), kv_type="f16", kv_bytes=4 << 20, threads=1, max_batch_tokens=16, max_sequences=4,
    packed_cache=os.fsencode(sys.argv[2]), fingerprint="0" * 64, progress=progress, patience=float(sys.argv[3]),
)
print(engine.packed_cache()[2])
"""


@pytest.fixture
def packs(model: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Begins processes that pack the model into the folder's file, waiting for each other for so many seconds.

    One that packs ``slowly`` waits after its first matrix for something on its stdin.
    """
    begun: list[subprocess.Popen[str]] = []

    def begin(folder: Path, patience: float, *how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PACKS, str(model), str(folder / "cache"), str(patience), *how]
        begun.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def rest_of(process: subprocess.Popen[str]) -> str:
    """What it prints last, told to go on if it waits for that."""
    said, _ = process.communicate("x", timeout=60)
    assert process.returncode == 0
    return said.splitlines()[-1]


def test_of_processes_without_a_file_one_packs_and_the_others_wait_for_it(packs: Any, folder: Path) -> None:
    first = packs(folder, 60, "slowly")
    assert line_of(first) == "packing"
    others = [packs(folder, 60) for _ in range(2)]
    assert [line_of(other) for other in others] == ["waiting", "waiting"]
    assert rest_of(first) == f"packed weights kept in {folder / 'cache'}"
    for other in others:
        assert rest_of(other) == f"packed weights mapped from {folder / 'cache'}"
    assert only_file(folder).name == "cache"


def test_a_process_that_waits_packs_when_the_one_it_waits_for_dies(packs: Any, folder: Path) -> None:
    first = packs(folder, 60, "slowly")
    assert line_of(first) == "packing"
    second = packs(folder, 60)
    assert line_of(second) == "waiting"
    first.kill()
    assert rest_of(second) == f"packed weights kept in {folder / 'cache'}"
    assert {file.suffix for file in folder.iterdir()} <= {"", ".tmp"}, "no lock is left"


def test_a_process_does_not_wait_for_one_that_is_stuck(packs: Any, folder: Path) -> None:
    first = packs(folder, 60, "slowly")
    assert line_of(first) == "packing"
    first.send_signal(signal.SIGSTOP)
    assert rest_of(packs(folder, 0.3)).startswith("packed weights are not kept: the process that packs them for ")
    first.send_signal(signal.SIGCONT)
    assert rest_of(first).startswith("packed weights kept in ")


def test_waiting_for_another_process_can_be_interrupted(packs: Any, model: Path, folder: Path) -> None:
    first = packs(folder, 60, "slowly")
    assert line_of(first) == "packing"

    def stop(done: int, total: int) -> None:
        raise RuntimeError(f"enough at {done}")

    with pytest.raises(RuntimeError, match="enough at 0"):
        begin(model, stop, folder / "cache")
    assert rest_of(first).startswith("packed weights kept in ")


def test_what_killed_writers_left_is_removed_after_an_hour(model: Path, folder: Path) -> None:
    opened(model).close()
    file = only_file(folder)
    file.unlink()
    old, young, others = (
        folder / name for name in (f"{file.name}.1.tmp", f"{file.name}.2.tmp", "x.gguf.00.packed.1.tmp")
    )
    for leftover in (old, young, others):
        leftover.write_bytes(b"half")
        os.utime(leftover, (time.time() - 3700,) * 2)
    os.utime(young)
    opened(model).close()
    assert set(folder.iterdir()) == {file, young, others}


def test_a_model_replaced_while_it_is_loaded_is_refused(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["a" * 64, "b" * 64])
    monkeypatch.setattr(ggml, "fingerprint", lambda path, header: next(digests))
    with pytest.raises(ModelError, match="replaced while it was loaded"):
        opened(model)
    assert not list(folder.iterdir())


# -- progress ---------------------------------------------------------------------------------------------------------


def begin(model: Path, progress: Callable[[int, int], None] | None, cache: Path | None = None) -> Any:
    return core.Engine(
        os.fsencode(model),
        kv_type="f16",
        kv_bytes=4 << 20,
        threads=1,
        max_batch_tokens=16,
        max_sequences=4,
        packed_cache=os.fsencode(cache) if cache else "",
        fingerprint="0" * 64,
        progress=progress,
    )


@pytest.mark.parametrize("cached", ["no file", "new file", "kept file"])
def test_progress_grows_to_the_end(cached: str, model: Path, tmp_path: Path) -> None:
    cache = None if cached == "no file" else tmp_path / "cache"
    if cached == "kept file":
        begin(model, None, cache)
    seen: list[tuple[int, int]] = []
    engine = begin(model, lambda done, total: seen.append((done, total)), cache)
    total = int(engine.stats()["extra"]["packed_weight_bytes"])
    assert seen[-1] == (total, total)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("cached", [False, True])
def test_what_progress_raises_ends_the_load_and_leaves_nothing(cached: bool, model: Path, folder: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        begin(model, stop, folder / "cache" if cached else None)
    assert not list(folder.iterdir())


def test_a_load_can_be_interrupted(model_path: Path, folder: Path) -> None:
    """As by Ctrl-C, with nobody watching the progress."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without it
    packing = threading.Event()

    def interrupt() -> None:
        packing.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def load_often() -> None:
        packing.set()
        for _ in range(100):  # one takes some tenths of a second; the signal comes within the first ones
            begin(model_path, None, folder / "cache")
            (folder / "cache").unlink()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            load_often()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, usual)
    assert not [file for file in folder.iterdir() if file.suffix == ".tmp"]


def test_a_load_that_was_ended_gives_its_memory_back(model_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise RuntimeError("enough")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end_loads(count: int) -> None:
        for _ in range(count):
            with pytest.raises(RuntimeError, match="enough"):
                begin(model_path, stop)

    end_loads(1)
    before = resident()
    end_loads(4)
    assert resident() - before < model_path.stat().st_size // 2


def test_a_bar_is_drawn_on_a_terminal_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ggml, "SHOWN_AFTER", 0.0)
    opened(model).close()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    opened(model).close()
    shown = capsys.readouterr().err
    assert "packing model.gguf" in shown
    assert "100%" in shown
