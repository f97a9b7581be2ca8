"""Shows how often each kernel goes into ggml's plain op, at the end of the run."""

from __future__ import annotations

from typing import Any

import pytest

#: One token by float weights is bound by reading them, for both.
LEAST = 0.8
RATIOS: dict[str, tuple[float, float, float]] = {}


@pytest.fixture
def compared(request: pytest.FixtureRequest, benchmark: Any) -> Any:
    """``compared(ours, plain)``: both take a number of repetitions and return the seconds of each.

    They take turns, and the least of each counts. Fails when ours is clearly slower than ggml's plain op. Seconds of
    both and their ratio are in the benchmark's extra_info: `--benchmark-json FILE` keeps them.
    """

    def compare(ours: Any, plain: Any, repeat: int) -> None:
        best = [float("inf"), float("inf")]
        for _ in range(5):
            for index, side in enumerate((ours, plain)):
                best[index] = min(best[index], *side(repeat))
        ratio = best[1] / best[0]
        benchmark.extra_info.update(ours=best[0], ggml=best[1], ratio=ratio)
        RATIOS[request.node.name] = (best[0], best[1], ratio)
        benchmark.pedantic(ours, args=(repeat,), rounds=3)
        assert ratio > LEAST, f"{1e6 * best[0]:.1f} us against ggml's {1e6 * best[1]:.1f} us"

    return compare


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a kernel."""
    if RATIOS:
        terminalreporter.section("against ggml's plain op")
    for name, (ours, plain, ratio) in RATIOS.items():
        terminalreporter.write_line(f"{name:60} {1e6 * ours:10.1f} us {1e6 * plain:10.1f} us {ratio:7.2f}x")
