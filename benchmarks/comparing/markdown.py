"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Row = Sequence[str]

#: Characters of a reason in a cell; all of it is in the list of what is missing.
REASON = 90


def table(head: Row, rows: Iterable[Row], text: int = 1) -> str:
    """A Markdown table; the first ``text`` columns are text, the others are figures."""
    lines = [head, [*["---"] * text, *["---:"] * (len(head) - text)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quartiles(of: Mapping[str, float], digits: int | None = None) -> str:
    """First and third, of a Spread; of a single round there are none."""
    if of["count"] < 2:
        return "1 round"
    first, third = (number(of[name]) if digits is None else f"{of[name]:.{digits}f}" for name in ("q1", "q3"))
    return f"{first}-{third}"


def missing(why: str) -> str:
    """In place of a figure, in a cell."""
    why = " ".join(why.split()).replace("|", "/")
    return f"missing: {why if len(why) <= REASON else why[: REASON - 3] + '...'}"
