"""This machine's C++ compiler, for the small programs that measure it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def compiled(source: Path, program: Path, *options: str) -> Path:
    """Builds ``program``, a file, from one source. RuntimeError when there is no compiler or it fails, saying why."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError(f"no C++ compiler for {source.name}")
    command = [compiler, "-std=c++17", "-pthread", "-w", str(source), "-o", str(program), *options]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode != 0:
        raise RuntimeError(f"{source.name} does not build: {(built.stderr.strip().splitlines() or ['?'])[-1]}")
    return program
