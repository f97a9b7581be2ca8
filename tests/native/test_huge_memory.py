"""Weights and cells lie in memory that asks for huge pages, and none of it is resident before it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from native.tiny_llama import TinyLlama

HUGE = 2 << 20
#: Where the kernel cannot do it, asking must do no harm.
CAN = Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()

#: In a process of its own, whose other memory does not ask. Prints the mappings that do, (name, start, size, resident),
#: and the bytes of weights and of one page of cells: after the load, a step of one token, and one of 1,000.
LOOK = """
import json, re, sys
from pathlib import Path
from tokenloom.native_ext.engine import EngineSettings, Entry
from tokenloom.native_ext.ggml import load

def asking():
    found = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \\S+ \\S+ \\S+ \\S+ *(.*)", line):
            start, end = int(head[1], 16), int(head[2], 16)
            name = head[3]
        elif line.startswith("Rss:"):
            resident = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and " hg" in line:
            found.append((name, start, end - start, resident))
    return found

before = asking()
engine = load(EngineSettings(model=Path(sys.argv[1]), threads=1, max_batch_tokens=1000))
sequence = engine.new()
seen = [asking()]
for tokens in ([1], [2] * 1000):
    engine.forward([Entry(sequence, tokens, logits="last")])
    seen.append(asking())
bytes_packed = engine.stats.extra["packed_weight_bytes"]
print(json.dumps([before, seen, bytes_packed, engine.geometry.page_bytes]))
"""


def look(model: Path, **env: str) -> Any:
    run = subprocess.run(
        [sys.executable, "-c", LOOK, model], env={**os.environ, **env}, check=True, capture_output=True, text=True
    )
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 MB of weights, and cells of 512 kB a page."""
    tiny = TinyLlama(
        layers=4, embedding=512, feed_forward=1536, heads=8, kv_heads=8, head_size=64, context=2048, vocabulary=999
    )
    return tiny.write(tmp_path_factory.mktemp("huge") / "m.gguf")


def test_weights_and_cells_ask_for_huge_pages_and_take_no_more_memory_than_they_need(model: Path) -> None:
    before, (loaded, one, many), weights, page = look(model)
    assert before == []
    if not CAN:
        assert loaded == one == many == []
        return
    assert all(start % HUGE == 0 for _, start, _, _ in [*loaded, *one, *many])
    size, resident = (sum(mapping[i] for mapping in loaded) for i in (2, 3))
    assert weights <= size < weights + HUGE
    assert 0.98 * weights < resident <= size
    # Cells are reserved by many pages, and resident as they are used.
    size, resident = (sum(mapping[i] for mapping in one) - x for i, x in ((2, size), (3, resident)))
    assert size >= 8 << 20
    assert resident <= HUGE
    assert sum(mapping[3] for mapping in many) - weights <= -(-1001 // 64) * page + 2 * HUGE


def test_kept_weights_are_mapped_so_as_well(model: Path, tmp_path: Path) -> None:
    for _ in range(2):  # written, and found
        _, (loaded, *_), weights, _ = look(model, TOKENLOOM_PACKED_CACHE=str(tmp_path))
        files = [mapping for mapping in loaded if mapping[0].endswith(".packed")]
        assert sum(mapping[2] for mapping in files) >= (weights if CAN else 0)
        assert len(files) == len(loaded)
