"""``tokenloom tail``, ``sessions`` and ``schema``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tokenloom.schemas import export
from tokenloom.schemas.events import (
    AppendedEvent,
    ClonedEvent,
    ErrorEvent,
    Event,
    FinishedEvent,
    OpenedEvent,
    RewoundEvent,
    TokensEvent,
)

from .cli_options import with_client
from .client import Client
from .listing import SessionInfo


@click.command()
@click.argument("session")
@click.option("--from", "from_id", default="0", show_default=True, help="Stream id to begin after; $ is from now on.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON with its stream id.")
@click.option("--text", "only_text", is_flag=True, help="Generated text only.")
@with_client
def tail(client: Client, session: str, from_id: str, as_json: bool, only_text: bool) -> None:
    """Print a SESSION's events as they arrive, until it is closed."""
    handle = client.session(session)
    if handle.length() is None:
        click.echo(f"no session {session} yet; waiting for it", err=True)
    line_open = False
    for event in handle.events(from_id):
        if as_json:
            click.echo(json.dumps({"id": event.id, **event.model_dump(mode="json", exclude_none=True)}))
            continue
        text = event.text if isinstance(event, (TokensEvent, FinishedEvent)) else ""
        if text:
            click.echo(text, nl=False)
            line_open = not text.endswith("\n")
        if only_text and isinstance(event, FinishedEvent) and line_open:
            click.echo()
            line_open = False
        if not only_text and not isinstance(event, TokensEvent):
            click.secho(("\n" if line_open else "") + describe(event), dim=True)
            line_open = False
    if line_open:
        click.echo()


def describe(event: Event) -> str:
    """One line about an event, without its text."""
    head = f"[{event.id} {event.type} {event.job}]"
    if isinstance(event, OpenedEvent):
        return f"{head} seed {event.seed}" + (f", {event.length} tokens of {event.parent}" if event.parent else "")
    if isinstance(event, AppendedEvent):
        broken = ", in the middle of a character" if event.before else ""
        return f"{head} {len(event.tokens)} tokens at {event.position}{broken}"
    if isinstance(event, FinishedEvent):
        why = f": {event.error.message}" if event.error is not None else ""
        half = f", {event.pending} bytes of a character pending" if event.pending else ""
        return f"{head} {event.reason}{why}, {event.usage.generated} generated, length {event.length}{half}"
    if isinstance(event, RewoundEvent):
        return f"{head} length {event.length}"
    if isinstance(event, ClonedEvent):
        return f"{head} {event.length} tokens into {', '.join(event.targets)}"
    if isinstance(event, ErrorEvent):
        return f"{head} {event.error.message}"
    return head


@click.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 100_000), help="How many at most.")
@click.option("--json", "as_json", is_flag=True, help="One session a line, as JSON.")
@with_client
def sessions(client: Client, limit: int, as_json: bool) -> None:
    """List the sessions, the one used last first."""
    found = client.sessions(limit)
    if as_json:
        for info in found:
            click.echo(json.dumps(asdict(info)))
        return
    if not found:
        click.echo("no sessions")
        return
    now = time.time()
    rows: list[tuple[str, ...]] = [("SESSION", "LENGTH", "STATE", "OWNER", "USED", "AGE", "PARENT")]
    rows += [_row(info, now) for info in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(info: SessionInfo, now: float) -> tuple[str, ...]:
    age = _ago(now - info.created) if info.created is not None else "-"
    used = _ago(now - info.used)
    return (info.id, str(info.length), info.state, info.owner or "-", used, age, info.parent or "-")


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write files into this folder instead.")
def schema(out: Path | None) -> None:
    """Print the JSON Schema of every job, event, record and result."""
    if out is None:
        click.echo(export.text(export.document()), nl=False)
        return
    paths: list[Any] = export.write(out)
    click.echo(f"{len(paths)} files in {out}")
