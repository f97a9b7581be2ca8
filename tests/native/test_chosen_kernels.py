"""``auto`` is the best named set in all its parts, whatever of the CPU is hidden from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.comparing.forcing import hidden

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.native import core

#: Multiplication, attention and rows of each set, where a CPU has what it needs.
PARTS = {
    "portable": ("portable", "portable", "portable"),
    "avx2": ("avx2", "avx2", "avx2"),
    "avxvnni": ("avxvnni", "avx2", "avx2"),
    "vnni": ("vnni", "avx512", "avx512"),
}
#: Sets that ``auto`` may choose, the fastest last.
AUTOMATIC = [name for name in core.usable_kernels() if name != "amx"]

LOOK = """
import json
from tokenloom.native_ext.native import core
print(json.dumps([core.usable_kernels(), core.kernel_tables("auto"), core.kernel_tables("avx2")]))
"""


def test_auto_is_the_last_of_the_sets_in_all_its_parts() -> None:
    assert core.kernel_tables("auto") == core.kernel_tables() == core.kernel_tables(AUTOMATIC[-1])


@pytest.mark.parametrize("name", [name for name in core.usable_kernels() if name in PARTS])
def test_a_named_set_mixes_nothing_of_a_slower_one_into_it(name: str) -> None:
    assert core.kernel_tables(name) == PARTS[name]


def test_the_engine_multiplies_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyLlama().write(tmp_path / "tiny.gguf")
    for name in ("auto", *AUTOMATIC):
        monkeypatch.setenv("TOKENLOOM_KERNELS", name)
        engine = load(EngineSettings(model=model, threads=1))
        assert engine._open.weights()[0] == core.kernel_tables(name)[0]
        engine.close()


def test_auto_without_avx512_is_avx2(tmp_path: Path) -> None:
    """As on a machine that has no more: CPUID is made to say so, to whatever asks it."""
    if "avx2" not in AUTOMATIC:
        pytest.skip("needs AVX2")
    try:
        environment = hidden(tmp_path)
    except RuntimeError as error:
        pytest.skip(f"nothing can be hidden here: {error}")
    run = subprocess.run(
        [sys.executable, "-c", LOOK], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    usable, auto, named = json.loads(run.stdout)
    assert usable == ["portable", "avx2"]
    assert auto == named == list(PARTS["avx2"])
