"""``tokenloom inspect``: what a model file is, what it would take to serve it, or why it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from tokenloom.native_ext.engine import ModelError
from tokenloom.native_ext.gguf import read_metadata
from tokenloom.native_ext.inspection import Inspection, LayerShape
from tokenloom.native_ext.inspection import inspect as inspected

from .text import ChatTemplate, TextError, Tokenizer


@click.command("inspect", short_help="What a model file is, and what it takes to serve it.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def inspect(file: Path) -> None:
    """Print the family of a GGUF FILE, its shapes, the memory for weights and for cells, and which weights go the quick
    way. Says why a file is refused, and ends with code 1.
    """
    try:
        found = inspected(file)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    for name, value in (*rows_of(found), *text_rows(file)):
        click.echo(f"{name:13} {value}")


def rows_of(found: Inspection) -> Iterator[tuple[str, str]]:
    """What was read, a row each."""
    yield "family", f"{found.architecture} ({found.models})"
    if found.name:
        yield "name", found.name
    yield "context", f"{found.context:,} tokens"
    yield "embedding", f"{found.embedding:,}; vocabulary {found.vocabulary:,}"
    for alike, layers in groupby(enumerate(found.layers), key=lambda pair: pair[1]):
        numbers = [number for number, _ in layers]
        yield f"layer{'s' if len(numbers) > 1 else ''} {span(numbers)}", layer_text(alike)
    if found.experts is not None:
        experts = found.experts
        shared = f", and one of width {experts.shared:,} that all use" if experts.shared else ""
        yield "experts", f"{experts.count} of width {experts.feed_forward:,}, {experts.used} for a token{shared}"
    for name, weights in sorted(found.types.items(), key=lambda item: -item[1].file_bytes):
        way = "packed for our own kernels" if weights.quick else "multiplied by ggml, a row at a time"
        yield f"weights {name}", f"{weights.matrices} matrices, {size(weights.memory_bytes)}: {way}"
    total = sum(weights.memory_bytes for weights in found.types.values())
    yield "memory", f"{size(total)} for weights; for a token's cells " + ", ".join(
        f"{size(count)} ({kind})" for kind, count in found.cell_bytes.items()
    )


def text_rows(file: Path) -> Iterator[tuple[str, str]]:
    """Whether text and chat work, or why they do not."""
    metadata = read_metadata(file)
    tokenizer = None
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        yield "text", "yes"
    except TextError as error:
        yield "text", f"no, tokens only: {error}"
    try:
        ChatTemplate.from_metadata(metadata, tokenizer)
        yield "chat", "yes"
    except TextError as error:
        yield "chat", f"no: {error}"


def span(numbers: list[int]) -> str:
    """Of numbers that follow each other."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def layer_text(layer: LayerShape) -> str:
    """One layer in words."""
    sizes = str(layer.key_size) if layer.key_size == layer.value_size else f"{layer.key_size} and {layer.value_size}"
    parts = [f"{layer.heads} heads, {layer.kv_heads} for keys and values, of {sizes}"]
    parts += [f"window {layer.window:,}"] if layer.window else []
    parts += [] if layer.turns else ["no RoPE"]
    parts += [f"feed-forward {layer.feed_forward:,}"] if layer.feed_forward else ["experts"]
    return "; ".join(parts)


def size(count: int) -> str:
    """Bytes for people."""
    for unit, divisor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} bytes"
