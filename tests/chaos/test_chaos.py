"""The short chaos run: a bit over two minutes in all. `make chaos` runs the long one."""

from __future__ import annotations

from pathlib import Path

from chaos.run import Plan, chaos


def test_kills_pauses_and_outages_lose_and_double_nothing(tmp_path: Path) -> None:
    report = chaos(Plan(seconds=65, seed=20, folder=tmp_path, every=2.0))
    print(report)
    assert not report.violations, f"\n{report}"
    assert report.counts["kills"] > 0
    assert report.stats["resumed"] > 0
    assert report.figures["steps that end in a character"] > 0
    assert report.figures["characters broken off"] > 0
