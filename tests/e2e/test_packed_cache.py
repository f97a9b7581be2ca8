"""Workers that keep packed weights: the second one maps what the first has written, and says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from e2e.seen import QUICK
from tokenloom.producer import Client
from worker_process import WorkerProcess


def test_a_worker_maps_what_an_earlier_one_has_kept(
    client: Client, make_worker: Callable[..., WorkerProcess], model_path: Path, tmp_path: Path
) -> None:
    said = []
    for number, what in enumerate(("kept in", "mapped from", "off")):
        kept = "off" if what == "off" else tmp_path
        worker = make_worker(name=f"w{number}", model=model_path, threads=1, kv_bytes="64M", packed_cache=kept, **QUICK)
        session = client.open(seed=3)
        said.append(session.step("The old lighthouse", max_tokens=12, logprobs=2, ignore_eos=True).result(60))
        session.close()
        worker.terminate()
        assert ("packed weights " in worker.output()) == (what != "off")
        assert what == "off" or f"tokenloom: packed weights {what} {tmp_path}" in worker.output()
    assert said[0].tokens == said[1].tokens == said[2].tokens
    (file,) = tmp_path.glob("*.packed")
    assert file.name.startswith(f"{model_path.name}.")
