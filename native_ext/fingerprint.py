"""A digest that tells model files apart without reading all of a large one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SAMPLES = 256
SAMPLE_BYTES = 16 * 1024


def fingerprint(path: str | os.PathLike[str] | Path, header_bytes: int) -> str:
    """SHA-256, as 64 hex digits, over parts of a GGUF file.

    Covered in full: the file's size and its first ``header_bytes`` bytes, which are the header, all metadata
    (vocabulary and chat template included) and every tensor's name, type, shape and place. Of the tensor data: 256
    blocks of 16 KiB, evenly spaced from its first byte to its last, or all of it when it is smaller than that. Files
    that differ only in data between those blocks have the same fingerprint; a retrained or requantized model differs
    nearly everywhere. The result depends on nothing but the file's bytes.
    """
    digest = hashlib.sha256()
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(b"tokenloom fingerprint 1\0" + size.to_bytes(8, "little"))
        left = header_bytes
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        span = size - header_bytes
        if span <= SAMPLES * SAMPLE_BYTES:
            file.seek(header_bytes)
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            for i in range(SAMPLES):
                file.seek(header_bytes + (span - SAMPLE_BYTES) * i // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
