"""An engine that says what a test has written for it, in any vocabulary; its cells are those of the engine fake."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.native_ext.engine import Entry, Geometry, Output
from tokenloom.native_ext.fake import FakeEngine
from tokenloom.native_ext.fake_vocabulary import TOKENS


class Reciting:
    """Behind a log of n tokens comes ``script[n]``, whatever the log holds; past its end, the script begins anew.

    So a session that is cut back, cloned or taken over has the same to say from there. A batch that holds a sequence
    of ``breaks_at`` tokens raises.
    """

    def __init__(self, engine: FakeEngine, metadata: Mapping[str, Any], script: Sequence[int]) -> None:
        self._engine = engine
        self.metadata = metadata
        self.script = list(script)
        self.breaks_at: int | None = None
        name = f"reciting {metadata['tokenizer.ggml.model']} {len(metadata['tokenizer.ggml.tokens'])}"
        size = len(metadata["tokenizer.ggml.tokens"])
        self.geometry: Geometry = dataclasses.replace(engine.geometry, fingerprint=name, vocabulary=size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, batch: Sequence[Entry]) -> list[Output]:
        for entry in batch:
            if self.length(entry.sequence) + len(entry.tokens) == self.breaks_at:
                raise RuntimeError("told to break here")
        tokens = [[token % len(TOKENS) for token in entry.tokens] for entry in batch]
        cells = [Entry(entry.sequence, mapped) for entry, mapped in zip(batch, tokens, strict=True)]
        self._engine.forward(cells)
        return [
            Output(token=None if entry.sample is None else self.script[self.length(entry.sequence) % len(self.script)])
            for entry in batch
        ]
