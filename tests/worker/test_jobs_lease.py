"""Leases: who lives, who is dead, and where a dead worker's jobs go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from redis import Redis
from rq.job import Job

from job_tools import KEYS, Side, enqueue, epoch_of, ids, owner_of, reap
from tokenloom.schemas import MsgpackSerializer
from tokenloom.worker.jobs.lease import Lease, NameTaken, process_begun, surely_dead
from tokenloom.worker.jobs.scripts import Scripts, suspect_key


def deaths(redis: Redis, *jobs: str) -> list[int]:
    return [int(redis.hget(f"rq:job:{job}", "tokenloom_deaths") or 0) for job in jobs]


def test_jobs_of_a_dead_worker_go_back_to_the_front_in_their_order(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    for number in range(3):
        enqueue(redis, f"s{number}", f"j{number}", retry=None)
    a.take()
    redis.rpush(KEYS.worker_inbox("a"), "inbox")
    enqueue(redis, "s0", "inbox", queue_name="aside")
    redis.hset("rq:job:inbox", "origin", "steps")
    enqueue(redis, "s9", "newer")
    assert reap(b) == {}
    a.die()
    assert reap(b) == {"a": 4}

    assert ids(redis) == ["j0", "j1", "j2", "inbox", "newer"]
    assert deaths(redis, "j0", "j1", "j2", "inbox") == [1, 1, 1, 0]
    job = Job.fetch("j0", connection=redis, serializer=MsgpackSerializer)
    assert job.get_status() == "queued"
    assert not job.worker_name
    assert job.get_executions() == []
    assert redis.zcard("rq:wip:steps") == 0
    assert not redis.keys("rq:execution*")
    assert not redis.keys("rq:worker:a*")
    assert owner_of(redis, "s0") is None
    assert redis.smembers(KEYS.workers) == {b"b"}
    assert redis.keys(KEYS.worker("a") + "*") == []
    assert reap(b) == {}


def test_no_retry_is_spent_on_a_death(redis: Redis) -> None:
    from rq import Retry

    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j", retry=Retry(max=2))
    a.take()
    a.die()
    reap(b)
    assert redis.hget("rq:job:j", "retries_left") == b"2"
    assert b.take_one().deaths == 1


def test_only_the_suspect_is_blamed_where_there_is_one(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    for number in range(3):
        enqueue(redis, f"s{number}", f"j{number}")
    a.take()
    redis.set(suspect_key(KEYS, "a"), "j1")
    a.die()
    reap(b)
    assert deaths(redis, "j0", "j1", "j2") == [0, 1, 0]
    assert not redis.exists(suspect_key(KEYS, "a"))


@pytest.mark.parametrize("status", ["canceled", "stopped", "finished", "failed", None])
def test_jobs_that_ended_meanwhile_do_not_come_back(redis: Redis, status: str | None) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j")
    a.take()
    if status is None:
        redis.delete("rq:job:j")
    else:
        redis.hset("rq:job:j", "status", status)
    a.die()
    assert reap(b) == {"a": 0}
    assert ids(redis) == []
    assert redis.zcard("rq:wip:steps") == 0
    assert not redis.keys("rq:execution*")


def test_a_job_that_another_worker_runs_by_now_is_left_to_it(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j")
    a.take()
    redis.hset("rq:job:j", "worker_name", "b")
    a.die()
    reap(b)
    assert ids(redis) == []
    assert redis.hget("rq:job:j", "status") == b"started"


def test_retiring_gives_everything_back_and_blames_nobody(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    a.take()
    enqueue(redis, "s", "j1")
    b.take()
    enqueue(redis, "s", "j2")
    assert a.lease.retire() == 2
    assert ids(redis) == ["j0", "j1", "j2"]
    assert deaths(redis, "j0", "j1") == [0, 0]
    assert b.take() == ["j0", "j1", "j2"]
    assert a.lease.retire() == -1
    assert a.claim().standing == "lost"


def test_a_heartbeat_renews_only_what_is_still_mine(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    scripts = Scripts(redis, KEYS)

    def beat(incarnation: str) -> int:
        return int(scripts("heartbeat", ["a", incarnation, 60000, "now", 480, "busy", "active", 3]))

    assert beat(a.lease.incarnation) == 1
    assert redis.hget(KEYS.worker("a"), "active") == b"3"
    assert redis.hget("rq:worker:a", "state") == b"busy"
    assert beat("somebody") == 0

    a.die()
    assert beat(a.lease.incarnation) == 2, "lapsed, but nobody buried it"
    assert a.claim().standing == "ok"
    redis.delete("rq:worker:a")
    assert beat(a.lease.incarnation) == 3
    a.die()
    reap(b)
    assert beat(a.lease.incarnation) == 0, "buried"
    assert not redis.exists("rq:worker:a")


def test_refreshing_keeps_executions_and_revives_none(redis: Redis) -> None:
    side = Side(redis, "a")
    for number in range(2):
        enqueue(redis, f"s{number}", f"j{number}")
    first, second = side.claim().jobs
    redis.delete(second.execution.key, "rq:executions:j1", "rq:job:j1")
    redis.zrem("rq:wip:steps", second.execution.composite_key)
    redis.expire(first.execution.key, 5)
    arguments = [part for each in (first, second) for part in (each.id, each.execution.id, "steps")]
    assert Scripts(redis, KEYS)("refresh", ["a", "now", time.time(), 3600, *arguments]) == 1
    assert redis.ttl(first.execution.key) > 3000
    assert redis.zcard("rq:wip:steps") == 1
    assert not redis.keys("rq:*j1*")


def test_two_workers_never_get_the_same_job_and_sessions_stay_in_order(redis: Redis) -> None:
    """Four threads claim against each other and now and then one dies; each session's jobs must come in order."""
    for number in range(200):
        enqueue(redis, f"s{number % 7}", f"j{number:03}")
    seen: list[tuple[str, str]] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        side = Side(redis, name)
        idle = 0
        while idle < 30:
            with lock:  # one claim and its note at a time, so that the notes are in the order of the claims
                jobs = side.claim(3).jobs
                seen.extend((claimed.session or "", claimed.id) for claimed in jobs)
            for claimed in jobs:
                redis.hset(f"rq:job:{claimed.id}", "status", "finished")
                redis.zrem(KEYS.worker_jobs(name), claimed.id)
            idle = 0 if jobs else idle + 1
            if len(seen) % 10 == 0 and jobs:
                redis.delete(KEYS.worker(name))
                side = Side(redis, name)
            time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == 200
    for session in range(7):
        mine = [id for name, id in seen if name == f"s{session}"]
        assert mine == sorted(mine)


# -- one process a name -----------------------------------------------------------------------------------------------


def born(redis: Redis, name: str, **fields: str) -> None:
    """A worker's records as another process would have left them."""
    redis.hset(KEYS.worker(name), mapping={"incarnation": "old", "beat": "1"})
    for field, value in fields.items():
        redis.hset(KEYS.worker(name), field, value)
    redis.pexpire(KEYS.worker(name), 60_000)
    redis.hset(f"rq:worker:{name}", mapping={"birth": "x", "queues": "steps", "tokenloom": "old"})


def ended_process() -> str:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


def test_a_name_whose_process_is_gone_is_taken_over_at_once(redis: Redis) -> None:
    a = Side(redis, "a")
    enqueue(redis, "s", "j")
    a.take()
    redis.hset(KEYS.worker("a"), "pid", ended_process())
    began = time.monotonic()
    successor = Side(redis, "a")
    assert successor.back == 1
    assert time.monotonic() - began < 1
    assert successor.take_one().epochs == {"s": 2}
    assert epoch_of(redis, "s") == 2
    assert a.claim().standing == "lost"


def test_a_process_id_that_came_back_does_not_count_as_alive(redis: Redis) -> None:
    host, pid = socket.gethostname(), str(os.getpid())
    assert surely_dead(host, pid, "12345")
    assert surely_dead(host, pid, "")
    assert not surely_dead(host, pid, process_begun(os.getpid()))
    assert surely_dead(host, str(os.getppid()), "12345")
    assert not surely_dead(host, str(os.getppid()), process_begun(os.getppid()))
    assert not surely_dead("elsewhere", ended_process(), "")


def test_the_name_of_a_living_process_is_refused(redis: Redis) -> None:
    parent = os.getppid()
    born(redis, "a", host=socket.gethostname(), pid=str(parent), begun=process_begun(parent))
    with pytest.raises(NameTaken, match="There exists an active worker named 'a' already"):
        Lease(redis, KEYS, "a", 60).take()


def test_of_another_machine_the_heartbeat_tells(redis: Redis) -> None:
    born(redis, "a", host="elsewhere", pid="1")
    redis.pexpire(KEYS.worker("a"), 300)
    began = time.monotonic()
    assert Lease(redis, KEYS, "a", 60).take() == 0
    assert 0.2 < time.monotonic() - began < 2

    born(redis, "b", host="elsewhere", pid="1")
    threading.Timer(0.2, lambda: redis.hset(KEYS.worker("b"), "beat", "2")).start()
    with pytest.raises(NameTaken):
        Lease(redis, KEYS, "b", 60).take()


def test_a_worker_of_another_kind_keeps_its_name(redis: Redis) -> None:
    redis.hset("rq:worker:a", mapping={"birth": "x", "pid": "1"})
    with pytest.raises(NameTaken):
        Lease(redis, KEYS, "a", 60).take()
    redis.hset("rq:worker:a", "death", "now")
    Lease(redis, KEYS, "a", 60).take()
