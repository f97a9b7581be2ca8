"""The worker as a process: signals, kills, restarts, twins, and what people get wrong first."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from rq.command import send_shutdown_command

from e2e.seen import wait_until
from job_tools import KEYS, enqueue, ids, status
from valkey_server import ValkeyServer
from worker_process import WorkerProcess, rq_command


def test_sigterm_lets_finish_what_can_and_gives_the_rest_back_in_front(
    redis: Redis, scripted: Callable[..., WorkerProcess]
) -> None:
    worker = scripted(name="a", grace=1)
    enqueue(redis, "s0", "quick", kwargs={"generation": {"max_tokens": 60}})
    for number in range(3):
        enqueue(redis, f"s{number}", f"j{number}", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 4)
    worker.send(signal.SIGTERM)
    enqueue(redis, "t", "newer")
    assert worker.wait(10) == 0
    assert status(redis, "quick") == "finished"
    assert ids(redis) == ["j0", "j1", "j2", "newer"]
    assert [redis.hget(f"rq:job:j{number}", "tokenloom_deaths") for number in range(3)] == [None] * 3
    assert not redis.keys(KEYS.worker("a") + "*")
    assert redis.hexists("rq:worker:a", "death")
    output = worker.output()
    assert "warm shut down requested" in output
    assert "3 unfinished jobs go back" in output
    assert "Traceback" not in output


def test_a_second_signal_does_not_wait_for_the_grace_period(
    redis: Redis, scripted: Callable[..., WorkerProcess]
) -> None:
    worker = scripted(name="a", grace=60)
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 1)
    worker.send(signal.SIGINT)
    worker.send(signal.SIGINT)  # within a second: the same Ctrl-C seen twice
    time.sleep(1.2)
    worker.send(signal.SIGINT)
    assert worker.wait(5) == 0
    assert ids(redis) == ["j"]


def test_the_shutdown_command_is_a_warm_shutdown(redis: Redis, scripted: Callable[..., WorkerProcess]) -> None:
    worker = scripted(name="a")
    enqueue(redis, "s", "j", kwargs={"generation": {"max_tokens": 50}})
    wait_until(lambda: redis.llen("began") == 1)
    send_shutdown_command(redis, "a")
    assert worker.wait(10) == 0
    assert status(redis, "j") == "finished"


def test_a_killed_workers_jobs_run_again_as_soon_as_its_name_is_back(
    redis: Redis, scripted: Callable[..., WorkerProcess]
) -> None:
    worker = scripted(name="a", lease=60)
    for number in range(3):
        enqueue(redis, f"s{number}", f"j{number}", kwargs={"generation": {"max_tokens": 100}})
    wait_until(lambda: redis.llen("began") == 3)
    worker.kill()
    assert status(redis, "j0") == "started"
    worker.start()
    wait_until(lambda: redis.llen("began") == 6, 1.0)
    assert ids(redis, "began")[3:] == ids(redis, "began")[:3]
    wait_until(lambda: status(redis, "j2") == "finished")
    assert redis.hget("rq:job:j0", "tokenloom_deaths") is None
    assert "3 jobs of the last worker named a are back in their queues" in worker.output()


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_while_it_loads_its_model_does_not_load_it_first(
    redis: Redis, scripted: Callable[..., WorkerProcess], tmp_path: Path, which: signal.Signals
) -> None:
    loading = tmp_path / "loading"
    enqueue(redis, "s", "j")
    worker = scripted(start=False, name="a", environment={"SCRIPTED_LOADING": str(loading)}).start(born=False)
    wait_until(loading.exists)
    worker.send(which)
    assert worker.wait(10) == 0
    assert loading.exists(), "which it would have waited for"
    assert "stopped on request while the model was loaded" in worker.output()
    assert "Traceback" not in worker.output()
    assert ids(redis) == ["j"]
    assert not redis.exists("rq:workers", KEYS.workers, KEYS.worker("a"))


def loaded_without_redis(server: ValkeyServer, scripted: Callable[..., WorkerProcess], loading: Path) -> WorkerProcess:
    """A worker whose server has died while its model was loaded, and that has noticed."""
    environment = {"SCRIPTED_LOADING": str(loading)}
    worker = scripted(start=False, name="a", redis_url=server.url, environment=environment).start(born=False)
    wait_until(loading.exists)
    server.kill()
    loading.unlink()
    wait_until(lambda: "Redis does not answer" in worker.output())
    return worker


def test_a_worker_that_loads_its_model_while_redis_dies_waits_for_it(
    valkey_server: Callable[..., ValkeyServer], scripted: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    server = valkey_server()
    worker = loaded_without_redis(server, scripted, tmp_path / "loading")
    server.start()
    with server.client() as redis:
        enqueue(redis, "s", "j")
        wait_until(lambda: status(redis, "j") == "finished")
    assert "Traceback" not in worker.output()


def test_a_worker_waiting_for_redis_to_be_born_ends_when_told_to(
    valkey_server: Callable[..., ValkeyServer], scripted: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    server = valkey_server()
    worker = loaded_without_redis(server, scripted, tmp_path / "loading")
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert "stopped while Redis did not answer" in worker.output()
    assert "Traceback" not in worker.output()


def test_another_worker_takes_over_when_the_lease_lapses(redis: Redis, scripted: Callable[..., WorkerProcess]) -> None:
    a = scripted(name="a", lease=1, heartbeat=0.2)
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 1)
    scripted(name="b", lease=1, heartbeat=0.2)
    enqueue(redis, "s", "k", kwargs={"generation": {"max_tokens": 1}})
    wait_until(lambda: ids(redis, KEYS.worker_inbox("a")) == ["k"] or status(redis, "k") == "started")
    a.kill()
    wait_until(lambda: ids(redis, "began").count("b:s:j") == 1 and "b:s:k" in ids(redis, "began"), 5)
    assert ids(redis, "began").index("b:s:j") < ids(redis, "began").index("b:s:k")
    assert redis.hget("rq:job:j", "tokenloom_deaths") == b"1"


def test_a_stopped_process_loses_its_jobs_and_finds_out(redis: Redis, scripted: Callable[..., WorkerProcess]) -> None:
    a = scripted(name="a", lease=1, heartbeat=0.2)
    enqueue(redis, "s", "j", kwargs={"generation": {"max_tokens": 400}})
    wait_until(lambda: redis.llen("began") == 1)
    scripted(name="b", lease=1, heartbeat=0.2)
    a.send(signal.SIGSTOP)
    wait_until(lambda: "b:s:j" in ids(redis, "began"), 5)
    a.send(signal.SIGCONT)
    wait_until(lambda: "begins anew" in a.output(), 5)
    wait_until(lambda: status(redis, "j") == "finished")
    assert redis.hget("rq:job:j", "worker_name") == b"b"
    assert redis.xlen("rq:results:j") == 1
    enqueue(redis, "t", "next")
    wait_until(lambda: status(redis, "next") == "finished")
    assert redis.smembers(KEYS.workers) == {b"a", b"b"}


def test_a_process_that_lost_its_name_leaves_it_to_the_successor(
    redis: Redis, scripted: Callable[..., WorkerProcess]
) -> None:
    first = scripted(name="a", lease=1, heartbeat=0.2)
    enqueue(redis, "s", "j", kwargs={"generation": {"max_tokens": 300}})
    wait_until(lambda: redis.llen("began") == 1)
    first.send(signal.SIGSTOP)
    wait_until(lambda: not redis.exists(KEYS.worker("a")), 5)
    scripted(name="a", lease=1, heartbeat=0.2)
    first.send(signal.SIGCONT)
    assert first.wait(10) == 1
    assert "another process works under this name now" in first.output()
    wait_until(lambda: status(redis, "j") == "finished")
    assert redis.xlen("rq:results:j") == 1
    assert not redis.hexists("rq:worker:a", "death")
    assert redis.smembers("rq:workers") == {b"rq:worker:a"}


def test_a_bug_in_the_cycle_ends_the_worker_with_an_error_and_its_jobs_survive(
    redis: Redis, scripted: Callable[..., WorkerProcess]
) -> None:
    worker = scripted(name="a")
    enqueue(redis, "s", "j", kwargs={"text": "raise"})
    assert worker.wait(10) == 1
    assert ids(redis) == ["j"]
    assert redis.hget("rq:job:j", "tokenloom_deaths") == b"1"
    assert "a bug in the cycle" in worker.output()


def test_a_living_worker_keeps_its_name(redis: Redis, scripted: Callable[..., WorkerProcess]) -> None:
    scripted(name="a")
    twin = scripted(name="a", start=False)
    twin.start(born=False)
    assert twin.wait(10) == 1
    assert "There exists an active worker named 'a' already" in twin.output()
    enqueue(redis, "s", "j")
    wait_until(lambda: status(redis, "j") == "finished")


def test_rq_info_shows_what_the_worker_does(
    redis: Redis, redis_url: str, scripted: Callable[..., WorkerProcess]
) -> None:
    def info() -> str:
        command = [rq_command(), "info", "-u", redis_url, "-S", "tokenloom.schemas.MsgpackSerializer"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    worker = scripted(name="shown", heartbeat=0.2)
    wait_until(lambda: redis.hget("rq:worker:shown", "state") == b"idle")
    assert "shown" in info()
    assert "idle" in info()
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.hget("rq:worker:shown", "state") == b"busy")
    shown = info()
    assert "busy" in shown
    assert "1 workers" in shown
    worker.kill()
    info()
    assert status(redis, "j") == "started", "whoever looks must not fail a dead worker's job"


def test_redis_going_away_costs_nothing_but_time(
    scripted: Callable[..., WorkerProcess], valkey_server: Callable[..., ValkeyServer]
) -> None:
    server = valkey_server(appendfsync="always")
    with server.client() as redis:
        worker = scripted(name="a", redis_url=server.url, lease=1, heartbeat=0.2)
        enqueue(redis, "s", "running", kwargs={"generation": {"max_tokens": 300}})
        wait_until(lambda: redis.llen("began") == 1)
    server.kill()
    time.sleep(1.5)
    server.start()
    with server.client() as redis:
        wait_until(lambda: status(redis, "running") == "finished")
        enqueue(redis, "s", "next")
        wait_until(lambda: status(redis, "next") == "finished")
        assert redis.lrange("began", 0, -1) == [b"a:s:running", b"a:s:next"]
    output = worker.output()
    assert output.count("could not connect to Redis instance") == 1
    assert "Redis answers again" in output
    assert "nobody took over meanwhile" in output
    assert worker.terminate() == 0


def test_the_scheduler_runs_beside_the_worker(redis: Redis, scripted: Callable[..., WorkerProcess]) -> None:
    from datetime import timedelta

    from job_tools import STEP, queue

    worker = scripted(name="a", options=("--with-scheduler",))
    queue(redis).enqueue_in(timedelta(seconds=1), STEP, session="s", job_id="later")
    wait_until(lambda: status(redis, "later") == "finished", 20)
    assert worker.terminate() == 0
    wait_until(lambda: not redis.keys("rq:scheduler*"), 5)


# -- what people get wrong first --------------------------------------------------------------------------------------


def run(redis_url: str, *arguments: str, serializer: bool = True, **settings: str) -> tuple[int, list[str]]:
    """Exit code and lines of a real worker that should not start."""
    command = [rq_command(), "worker", "-w", "tokenloom.worker.BatchWorker", "-u", redis_url, *arguments]
    if serializer:
        command += ["-S", "tokenloom.schemas.MsgpackSerializer"]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TOKENLOOM_")}
    ended = subprocess.run(
        [*command, "steps"], env={**inherited, **settings}, capture_output=True, text=True, timeout=60
    )
    return ended.returncode, (ended.stdout + ended.stderr).strip().splitlines()


def test_no_serializer_option(redis_url: str) -> None:
    code, lines = run(redis_url, serializer=False, TOKENLOOM_MODEL="x")
    assert code == 1
    assert "msgpack only" in lines[-2]
    assert lines[-1].strip() == (
        "rq worker -w tokenloom.worker.BatchWorker -S tokenloom.schemas.MsgpackSerializer steps"
    )
    assert len(lines) == 2


def test_no_model(redis_url: str) -> None:
    code, lines = run(redis_url)
    assert code == 1
    assert len(lines) == 1
    assert "TOKENLOOM_MODEL is not set" in lines[0]


def test_a_wrong_setting(redis_url: str) -> None:
    code, lines = run(redis_url, TOKENLOOM_MODEL="x", TOKENLOOM_GRACE="soon")
    assert code == 1
    assert len(lines) == 1
    assert "TOKENLOOM_GRACE='soon'" in lines[0]


def test_a_model_that_is_no_model(redis_url: str, tmp_path: Path, redis: Redis) -> None:
    text = tmp_path / "model.gguf"
    text.write_text("not a model")
    for path in (text, tmp_path / "missing.gguf"):
        code, lines = run(redis_url, TOKENLOOM_MODEL=str(path))
        assert code == 1
        assert len(lines) == 1
        assert str(path) in lines[0]
    assert not redis.keys("rq:worker*")


def test_no_redis(tmp_path: Path) -> None:
    code, lines = run(f"unix://{tmp_path}/nobody", TOKENLOOM_MODEL="x")
    assert code == 1
    assert len(lines) == 1
    assert "nobody" in lines[0]
