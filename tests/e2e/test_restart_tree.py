"""Twenty sessions in a tree of clones outlive their worker: the same tokens, and each shared prefix computed once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from redis import Redis

from e2e.seen import QUICK, check_stream, final_stats, log_of
from tokenloom.producer import Client, Session
from tokenloom.schemas import Keys
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]

ROOT = (
    "The old lighthouse stood at the end of the bay, and every evening the keeper climbed its stairs to light the lamp."
)
CHILDREN = (" One night", " The storm", " A stranger", " His daughter")
GRANDCHILDREN = (" came quietly", " had never seen", " told him that", " was gone, and")
SESSIONS = 1 + len(CHILDREN) * (1 + len(GRANDCHILDREN)) - 1
CONTINUATION = 6


def plant(client: Client, name: str) -> list[Session]:
    """A root, its children, and theirs: 20 sessions. Every second grandchild branches off before its parent's end."""
    root = client.open(f"{name}root", seed=1)
    root.step(ROOT, max_tokens=4, ignore_eos=True).result(60)
    children = root.clone(targets=[f"{name}{n}" for n in range(len(CHILDREN))], seeds=range(10, 14))
    steps = [c.step(text, max_tokens=4, ignore_eos=True) for c, text in zip(children, CHILDREN, strict=True)]
    lengths = [step.result(60).length for step in steps]
    tree = [root, *children]
    writing = []
    for n, (child, length) in enumerate(zip(children, lengths, strict=True)):
        for m, text in enumerate(GRANDCHILDREN[: 3 if n == 0 else 4]):
            (grandchild,) = child.clone(targets=[f"{name}{n}.{m}"], upto=length - m % 2, seeds=[100 + 10 * n + m])
            tree.append(grandchild)
            if m < 3:  # the last stays what its parent was
                writing.append(grandchild.step(text, max_tokens=3, ignore_eos=True))
    for step in writing:
        step.result(60)
    return tree


def go_on(order: Sequence[Session]) -> dict[str, list[int]]:
    """A few more tokens of every session, asked for all at once in this order; each session's tokens."""
    steps = [session.step(max_tokens=CONTINUATION, ignore_eos=True) for session in order]
    return {
        session.id.removeprefix("calm-"): step.result(60).tokens for session, step in zip(order, steps, strict=True)
    }


def shuffled(tree: Sequence[Session]) -> list[Session]:
    order = list(tree)
    random.Random(2).shuffle(order)
    return order


def distinct_prefixes(logs: Iterable[Sequence[int]]) -> int:
    """How many prefixes the logs have in all, each counted once: the nodes of their trie."""
    return len({tuple(log[:end]) for log in logs for end in range(1, len(log) + 1)})


def run_again(logs: Sequence[Sequence[int]]) -> int:
    """How many logs are wholly there in an earlier one: their last token runs again, for its logits."""
    earlier: set[tuple[int, ...]] = set()
    count = 0
    for log in logs:
        count += tuple(log) in earlier
        earlier |= {tuple(log[:end]) for end in range(1, len(log) + 1)}
    return count


@pytest.mark.parametrize("restore", ["lazy", "eager"])
def test_a_tree_of_sessions_survives_a_kill(
    client: Client, redis: Redis, make_worker: MakeWorker, model_path: Path, restore: str
) -> None:
    # one thread, since more of them wait for each other for long where others use the cores as well
    worker = make_worker(name="w", model=model_path, restore=restore, threads=1, kv_bytes="256M", **QUICK)
    calm = plant(client, "calm-")
    expected = go_on(calm)
    for session in calm:
        session.close(wait=False)
    tree = plant(client, "")
    assert len(tree) == SESSIONS == 20
    assert final_stats(client, "w")["resident"] == SESSIONS
    worker.kill()

    order = shuffled(tree)
    logs = [log_of(redis, session.id) for session in order]
    rows: Any = redis.hgetall(Keys().worker_sequences("w"))
    cached = {name.decode(): msgpack.unpackb(row)[1] for name, row in rows.items()}
    assert all(cached[session.id] >= len(log) - 1 for session, log in zip(order, logs, strict=True))
    worker.start()
    assert go_on(order) == expected

    stats = final_stats(client, "w")
    decoded = SESSIONS * (CONTINUATION - 1)
    if restore == "lazy":
        assert stats["restored_tokens"] == 0
        assert stats["tokens_run"] == distinct_prefixes(logs) + run_again(logs) + decoded
        assert stats["shared_tokens"] == sum(map(len, logs)) - distinct_prefixes(logs)
    else:
        kept = [log[: cached[session.id]] for session, log in zip(order, logs, strict=True)]
        assert stats["restored_tokens"] == distinct_prefixes(kept)
        assert stats["tokens_run"] == SESSIONS + decoded
    for session in tree:
        check_stream(redis, session.id)
