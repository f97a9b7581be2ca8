"""What steps have to say, from the bytes of their tokens alone: whole characters, and together the text of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from chaos.folding import StepSum
from chaos.history import Job
from characters import cut

Spell = Callable[[int], bytes]


def fake_spelling(token: int) -> bytes:
    """The bytes of a token of the engine fake; its special ones have none."""
    return bytes([token]) if token < 256 else {256: b" t", 257: b"he"}.get(token, b"")


def spelling_of(model: Path | None) -> Spell:
    """How a model file's tokens are spelled; without one, the fake's."""
    if model is None:
        return fake_spelling
    from tokenloom.native_ext.gguf import read_metadata
    from tokenloom.worker.text import Tokenizer

    return Tokenizer.from_metadata(read_metadata(model)).spoken_bytes


def check_text(job: Job, step: StepSum, spell: Spell) -> Iterable[str]:
    """One step's text, and what it says of the characters that are cut at its ends."""
    where = f"step {job['id']} of {job['session']}"
    held = cut(b"".join(map(spell, step.behind)))[1]
    before = "\ufffd" if held and step.appended else ""
    if step.before != before:
        yield f"{where}: before what it appended stands {step.before!r}; expected was {before!r}"
    text, left = cut((b"" if step.appended else held) + b"".join(map(spell, step.tokens)))
    if step.reason == "error":  # what it held back is kept for another try
        if not text.startswith(step.text):
            yield f"{where}: its text {step.text!r} is not the beginning of its tokens' {text!r}"
        return
    said = text
    if step.reason == "stop":
        stops = [stop for stop in job.get("generation", {}).get("stop", ()) if text.startswith(step.text + stop)]
        said = step.text if stops else text
    if step.text != said:
        yield f"{where}: its text {step.text!r} is not its tokens' {text!r}"
    if step.pending != len(left):
        yield f"{where}: it says that {step.pending} bytes are pending; its tokens leave {left!r}"
