"""The engine takes no more cores than the process may use, and counts the memory that is left to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from native.tiny_llama import TinyLlama
from tokenloom.native_ext.engine import EngineSettings
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.native import core

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> str:
    """Lay out a /proc and /sys of the test's own."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


CPU = {
    "nothing known": ({}, CORES),
    "v2, no quota": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, CORES),
    "v2, one core": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 100000\n"}, 1),
    "v2, one and a half": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1),
    "v2, a tenth": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "10000 100000\n"}, 1),
    "v2, more than there are": ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "99900000 100000\n"}, CORES),
    "v2, of a parent": (
        {
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
        },
        1,
    ),
    "v2, in a container, its path not visible": (
        {"proc/self/cgroup": "0::/docker/123\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
        1,
    ),
    "v1": (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/a\n2:memory:/m\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        },
        1,
    ),
    "v1, no quota": (
        {
            "proc/self/cgroup": "3:cpu:/a\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
        },
        CORES,
    ),
    "nonsense": ({"proc/self/cgroup": "::\nx\n0:\n", "sys/fs/cgroup/cpu.max": "what\n"}, CORES),
}


@pytest.mark.parametrize("name", CPU)
def test_cores(name: str, tmp_path: Path) -> None:
    files, expected = CPU[name]
    assert core.usable_cores(tree(tmp_path, files)) == expected


MEMINFO = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"  # 16 GiB
MEMORY: dict[str, tuple[dict[str, str], int | None]] = {
    "nothing known": ({}, None),
    "no limit": (
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"},
        16 * GIB,
    ),
    "v2, a limit": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file {GIB}\n",
        },
        3 * GIB,  # two of the three in use are cache
    ),
    "v1, a limit": (
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/a/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
        },
        2 * GIB,
    ),
    "v1, used up": (
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        },
        0,
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str, tmp_path: Path) -> None:
    files, expected = MEMORY[name]
    assert core.available_memory(tree(tmp_path, files)) == expected


def test_the_real_system_says_something() -> None:
    assert 1 <= core.usable_cores() <= CORES
    memory = core.available_memory()
    assert memory is None or memory > 0


def test_more_threads_than_cores_are_not_taken(tmp_path: Path) -> None:
    path = TinyLlama().write(tmp_path / "m.gguf")
    usable = core.usable_cores()
    for asked, taken in ((0, usable), (1, 1), (usable, usable), (usable + 5, usable)):
        assert load(EngineSettings(model=path, threads=asked)).geometry.threads == taken
