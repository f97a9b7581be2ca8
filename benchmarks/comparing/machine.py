"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenloom.native_ext.native import core

#: The flags of /proc/cpuinfo that decide which kernels can run.
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
PACKAGES = ("tokenloom", "libggml-python", "xllamacpp", "openvino", "openvino-genai", "numpy", "redis", "rq")


def machine() -> dict[str, Any]:
    """Processor, what of it may be used, memory, system, and the load now."""
    processor: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            processor.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    flags = processor.get("flags", "").split()
    return {
        "processor": processor.get("model name", platform.processor()),
        "family": f"family {processor.get('cpu family', '?')} model {processor.get('model', '?')}",
        "flags": [flag for flag in FLAGS if flag in flags],
        "usable_cores": core.usable_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "kernels": core.usable_kernels(),
        "huge_pages": huge_pages(),
        "load": round(os.getloadavg()[0], 2),
    }


def huge_pages() -> str:
    """Who gets pages of 2 MiB: always, madvise (who asks), never; or unknown."""
    try:
        choices = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    return choices.partition("[")[2].partition("]")[0]


def versions() -> dict[str, str]:
    """Of what is measured and what it stands on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    root = Path(__file__).resolve().parents[2]
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
        )
        found["commit"] = commit.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["commit"] = "unknown"
    return found
