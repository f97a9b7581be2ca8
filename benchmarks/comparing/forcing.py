"""How sides are kept to AVX2 on a machine that has more: a setting of ours, and CPUID that hides the rest from all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.comparing.compiler import compiled

SOURCE = Path(__file__).resolve().parents[1] / "hide_features.cpp"
#: What of a CPU's flags an AVX2 machine has not.
BEYOND = ("avx512f", "avx_vnni", "amx_int8")
#: Beginnings of what a build of llama.cpp says that it has, of such things.
BUILT_BEYOND = ("AVX512", "AVX_VNNI", "AVXVNNI", "AMX_INT8")


def hidden(folder: Path) -> dict[str, str]:
    """An environment whose programs find no more than AVX2. RuntimeError where CPUID cannot be hidden, saying why."""
    folder.mkdir(parents=True, exist_ok=True)
    library = compiled(SOURCE, folder.absolute() / "hide_features.so", "-O1", "-shared", "-fPIC", "-ldl")
    environment = {"LD_PRELOAD": os.pathsep.join(filter(None, [str(library), os.environ.get("LD_PRELOAD", "")]))}
    run = subprocess.run([sys.executable, "-c", ""], env={**os.environ, **environment}, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError((run.stderr.strip().splitlines() or [f"a program ended with {run.returncode}"])[-1])
    return environment


def is_beyond(flags: Iterable[str]) -> bool:
    """Whether a machine of these flags has anything to hide."""
    return not set(BEYOND).isdisjoint(flags)
