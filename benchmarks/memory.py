"""The memory of a process, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def peak_memory(pid: int) -> int:
    """The most bytes a process has had resident, pages of mapped files included (VmHWM of /proc)."""
    return status_bytes(pid, "VmHWM")


def status_bytes(pid: int, field: str) -> int:
    """A size in a process's status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {field}")
