"""A worker that has ended on this very machine is buried at once; one of another place when its lease lapses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from job_tools import KEYS, Side, enqueue, ids
from tokenloom.worker.jobs.active import ActiveJobs
from tokenloom.worker.jobs.contact import Contact
from tokenloom.worker.jobs.lease import dead_here, place, process_begun, process_lives
from tokenloom.worker.jobs.pulse import Findings, Pulse


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def pulse_of(side: Side) -> Pulse:
    findings = Findings(
        lost=lambda: None, unregistered=lambda: None, interrupt=lambda claimed, why: None, stats=dict, state=lambda: ""
    )
    return Pulse(
        side.redis, KEYS, side.lease, ActiveJobs(), Contact(), findings, every=1.0, refresh_every=30.0, rq_ttl=60
    )


def lives_as(side: Side, process: subprocess.Popen[bytes], where: str) -> None:
    """Let the worker's hash describe this process of that place."""
    fields: dict[Any, Any] = {"pid": str(process.pid), "begun": process_begun(process.pid), "place": where}
    side.redis.hset(KEYS.worker(side.name), mapping=fields)


def test_the_end_of_a_neighbour_is_noticed_before_its_lease_lapses(
    redis: Redis, child: subprocess.Popen[bytes]
) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j")
    a.take()
    lives_as(a, child, place())
    pulse = pulse_of(b)
    pulse.beat()
    assert (pulse.buried, ids(redis)) == (0, []), "it lives"
    child.kill()
    child.wait()
    pulse.beat()
    assert (pulse.buried, pulse.requeued, ids(redis)) == (1, 1, ["j"])
    assert not redis.exists(KEYS.worker("a"))


def test_nothing_is_said_of_processes_elsewhere(redis: Redis, child: subprocess.Popen[bytes]) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    lives_as(a, child, "another boot or container")
    child.kill()
    child.wait()
    pulse = pulse_of(b)
    pulse.beat()
    assert pulse.buried == 0
    assert not dead_here("", "1", "1")


def test_a_name_that_lives_again_is_not_buried_for_its_last_life(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    pulse = pulse_of(b)
    assert pulse._scripts("reap", ["b", "a", "an older incarnation"]) == []
    assert pulse._scripts("reap", ["b", "a", a.lease.incarnation]) == [b"a", 0]


def test_a_process_that_was_not_waited_for_has_ended(child: subprocess.Popen[bytes]) -> None:
    assert process_lives(child.pid)
    begun = process_begun(child.pid)
    child.kill()
    assert child.stdin is not None
    for _ in range(1000):
        if not process_lives(child.pid):
            break
    else:
        raise AssertionError("a zombie counts as alive")
    assert child.returncode is None, "nobody has waited for it"
    assert dead_here(place(), str(child.pid), begun)
