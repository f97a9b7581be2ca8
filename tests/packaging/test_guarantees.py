"""docs/guarantees.md names a test for every promise; each has to exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NAMED = re.compile(r"`(test_[a-z0-9_]+)`")


def test_every_test_that_the_guarantees_name_exists() -> None:
    rows = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| failure", "| ---"))]
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_[a-z0-9_]+)\(", tests))
    assert len(promises) > 20
    for row in promises:
        named = set(NAMED.findall(row))
        assert named, f"no test named: {row}"
        assert named <= defined, f"no such test: {sorted(named - defined)}"
