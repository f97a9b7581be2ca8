"""Feeds changed model files to everything that reads one, until the time is up or something breaks.

    python tests/fuzz/mutations.py CORPUS FOLDER SEED SECONDS

Each change is drawn from SEED and its number, so a run repeats. FOLDER keeps the file being read: after a crash it
is the culprit. Prints as JSON what happened.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import time
from collections import Counter
from pathlib import Path

from tokenloom.native_ext.engine import EngineError, EngineSettings, Entry, ModelError, Sampling
from tokenloom.native_ext.ggml import load
from tokenloom.native_ext.gguf import read_metadata
from tokenloom.worker.text import ChatTemplate, TextError, Tokenizer

#: Numbers at which something changes: signs, widths, limits.
EDGES = [0, 1, 2, 4, 7, 8, 9, 12, 13, 31, 32, 63, 64, 255, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
WIDE = [2**40, 2**61 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


def changed(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The file with one to four changes. Most of them fall into the header, where the structure is."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, min(len(out), rng.choice((64, 1024, 4096, 1 << 20)))))
        kind = rng.randrange(8)
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + 4] = struct.pack("<I", rng.choice(EDGES))
        elif kind == 2:
            out[at : at + 8] = struct.pack("<Q", rng.choice(EDGES + WIDE))
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + rng.randint(1, 64)]
        elif kind == 5:
            out[at:at] = rng.randbytes(rng.randint(1, 64))
        elif kind == 6:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            out[at : at + 32] = other[start : start + 32]
        else:
            out[at : at + 16] = out[at // 2 : at // 2 + 16]
    return bytes(out)


def read(path: Path) -> str:
    """Everything a worker does with a model file before its first job, and one forward. How far it came."""
    try:
        metadata = read_metadata(path)
    except ModelError:
        return "refused"
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        ChatTemplate.from_metadata(metadata, tokenizer)
    except TextError:
        pass
    try:
        engine = load(EngineSettings(model=path, kv_bytes=1 << 20, threads=1, max_batch_tokens=8, max_sequences=2))
    except ModelError:
        return "no model"
    except EngineError:
        return "no engine"
    try:
        sequence = engine.new()
        engine.forward([Entry(sequence, [0, 1, 2], Sampling(temperature=0.0))])
    except EngineError:
        return "no forward"
    finally:
        engine.close()
    return "ran"


def main(corpus: Path, folder: Path, seed: int, seconds: float) -> None:
    """Until the time is up."""
    files = [path.read_bytes() for path in sorted(corpus.iterdir())]
    path = folder / "reading.gguf"
    ends: Counter[str] = Counter()
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        rng = random.Random(f"{seed}:{number}")
        data = files[number] if number < len(files) else changed(rng.choice(files), files, rng)
        path.write_bytes(data)
        ends[read(path)] += 1
        number += 1
    print(json.dumps({"files": number, **ends}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
