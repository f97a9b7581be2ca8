"""RQ's stop-job, sent to a worker that is not there to hear it: it is done, or whoever asked is told that it is not.

RQ publishes a stop on the channel of the worker that the job names, whether anybody listens or not.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from redis import Redis
from redis.exceptions import ResponseError
from rq import Repeat, Retry
from rq.command import send_stop_execution_command, send_stop_job_command
from rq.exceptions import InvalidJobOperation

from e2e.seen import wait_until
from job_tools import KEYS, Side, enqueue, field, ids, reap, status
from scripted_worker import ScriptedWorker
from tokenloom.schemas import MsgpackSerializer
from tokenloom.worker.jobs import overheard as overheard_module
from tokenloom.worker.jobs.active import ActiveJobs
from tokenloom.worker.jobs.claimed import Claimed, Interruption
from tokenloom.worker.jobs.contact import Contact
from tokenloom.worker.jobs.overheard import Overheard
from tokenloom.worker.jobs.pulse import Findings, Pulse
from tokenloom.worker.jobs.scripts import Scripts
from valkey_server import ValkeyServer
from worker_process import WorkerProcess

MakeWorker = Callable[..., WorkerProcess]
QUICK = {"lease": 1, "heartbeat": 0.2}


def stop(redis: Redis, job: str = "j") -> None:
    """As people do it: a function of RQ, here with the serializer."""
    send_stop_job_command(redis, job, serializer=MsgpackSerializer)


def to_be_stopped(redis: Redis, job: str = "j") -> bool:
    return field(redis, f"rq:job:{job}", "tokenloom_stop") == "1"


class Neighbour:
    """A worker's side with its pulse, which beats when it is told to. ``wishes``: what it found for its jobs."""

    def __init__(self, redis: Redis, name: str, *, lease: float = 60.0) -> None:
        self.side = Side(redis, name, lease=lease)
        self.active = ActiveJobs()
        self.wishes: list[tuple[str, Interruption]] = []
        findings = Findings(
            lost=lambda: None,
            unregistered=lambda: None,
            interrupt=lambda claimed, why: self.wishes.append((claimed.id, why)),
            stats=dict,
            state=lambda: "",
        )
        self.pulse = Pulse(
            redis, KEYS, self.side.lease, self.active, Contact(), findings, every=1.0, refresh_every=30.0, rq_ttl=60
        )
        self.pulse.beat()
        wait_until(lambda: redis.pubsub_numpat(), what="listening")

    def beats_until(self, found: Callable[[], object]) -> None:
        """What was published arrives a moment later."""

        def beat() -> object:
            self.pulse.beat()
            return found()

        wait_until(beat)

    def take_one(self) -> Claimed:
        claimed = self.side.take_one()
        self.active.add([claimed])
        return claimed


@pytest.fixture
def sleeper(redis: Redis, monkeypatch: pytest.MonkeyPatch, signal_handlers: None) -> ScriptedWorker:
    """A worker whose commands the test hands to it, as late as it likes."""
    monkeypatch.setenv("TOKENLOOM_ENGINE", "fake")
    return ScriptedWorker(["steps"], name="a", connection=redis, serializer=MsgpackSerializer)


def listens_until(overheard: Overheard, found: Callable[[], object]) -> None:
    """As Neighbour.beats_until, without the rest of a pulse."""

    def listen() -> object:
        overheard.write_down()
        return found()

    wait_until(listen)


def command(**payload: str) -> dict[str, object]:
    """As it comes from the channel."""
    return {"type": "message", "channel": b"rq:pubsub:a", "data": json.dumps(payload).encode()}


# -- other workers hear it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["job", "execution"])
def test_a_stop_sent_to_a_dead_worker_holds_for_the_next(redis: Redis, what: str) -> None:
    enqueue(redis, "s", "j")
    dead = Side(redis, "a")
    execution = dead.take_one().execution
    neighbour = Neighbour(redis, "b")
    if what == "job":
        stop(redis)
    else:
        send_stop_execution_command(redis, "j", execution.id)
    neighbour.beats_until(lambda: to_be_stopped(redis))
    dead.die()
    neighbour.pulse.beat()
    assert neighbour.pulse.buried == 1
    assert neighbour.take_one().stopped


@pytest.mark.parametrize("what", ["job", "execution"])
@pytest.mark.parametrize("taken", [False, True], ids=["in its queue", "taken"])
def test_a_stop_that_comes_after_the_burial_holds_too(redis: Redis, what: str, taken: bool) -> None:
    """Somebody looked the job up, it was put back, and then they sent the stop to where it had been."""
    enqueue(redis, "s", "j")
    dead, neighbour = Side(redis, "a"), Neighbour(redis, "b")
    execution = dead.take_one().execution.id
    dead.die()
    assert reap(neighbour.side) == {"a": 1}
    if taken:
        assert not neighbour.take_one().stopped
    if what == "job":
        redis.publish("rq:pubsub:a", '{"command": "stop-job", "job_id": "j"}')
    else:
        redis.publish("rq:pubsub:a", f'{{"command": "stop-execution", "job_id": "j", "execution_id": "{execution}"}}')
    neighbour.beats_until(lambda: to_be_stopped(redis))
    assert neighbour.wishes == ([("j", "stopped")] if taken else [])
    if not taken:
        assert neighbour.take_one().stopped


def test_a_stop_that_a_frozen_worker_would_have_got_is_done_by_the_one_that_takes_over(
    redis: Redis, scripted: MakeWorker
) -> None:
    a = scripted(name="a", **QUICK)
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 1)
    scripted(name="b", **QUICK)
    a.send(signal.SIGSTOP)
    stop(redis)
    wait_until(lambda: "b:s:j" in ids(redis, "began"), 10)
    wait_until(lambda: status(redis, "j") == "stopped")
    a.send(signal.SIGCONT)
    wait_until(lambda: "begins anew" in a.output())
    assert redis.xlen("rq:results:j") == 1
    assert not redis.hexists("rq:job:j", "tokenloom_stop")
    assert not redis.hexists("rq:job:j", "tokenloom_past")


def test_a_stop_is_heard_by_a_worker_whose_own_channel_is_deaf(
    redis: Redis, sleeper: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "subscribe", lambda: None)
    enqueue(redis, "s", "j", kwargs={"text": "hang", "generation": {"max_tokens": 10**6}}, job_timeout=20)

    def stop_it() -> None:
        wait_until(lambda: redis.llen("began") and redis.pubsub_numpat())
        stop(redis)

    asking = threading.Thread(target=stop_it)
    asking.start()
    sleeper.work(burst=True)
    asking.join()
    assert status(redis, "j") == "stopped"


def test_what_others_say_on_the_channels_is_passed_over(redis: Redis) -> None:
    enqueue(redis, "s", "j")
    neighbour = Neighbour(redis, "b")
    neighbour.take_one()
    enqueue(redis, "t", "k")
    Side(redis, "c").take_one()
    for channel, said in [
        ("b", "no JSON"),
        ("b", "[]"),
        ("b", '{"command": "stop-job"}'),
        ("b", '{"command": "shutdown", "job_id": "j"}'),
        ("b", '{"command": "stop-job", "job_id": "j:a b"}'),
        ("b", '{"command": "stop-execution", "job_id": "j", "execution_id": "another"}'),
        ("a worker of another kind", '{"command": "stop-job", "job_id": "j"}'),
        ("b", '{"command": "stop-job", "job_id": "another"}'),
    ]:
        redis.publish(f"rq:pubsub:{channel}", said)
    redis.set(KEYS.worker_jobs("no set"), "x")
    redis.publish("rq:pubsub:no set", '{"command": "stop-job", "job_id": "j"}')
    redis.publish("rq:pubsub:c", '{"command": "stop-job", "job_id": "k"}')
    neighbour.beats_until(lambda: to_be_stopped(redis, "k"))  # so all before it was heard
    assert neighbour.wishes == []
    stop(redis)
    neighbour.beats_until(lambda: neighbour.wishes)
    assert neighbour.wishes == [("j", "stopped")]


def test_a_user_that_may_not_listen_to_all_channels_is_no_trouble(
    valkey_server: Callable[..., ValkeyServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = valkey_server()
    with server.client() as admin:
        admin.execute_command(*["ACL", "SETUSER", "narrow", "on", ">x", "~*", "resetchannels", "&rq:pubsub:b", "+@all"])
    caplog.set_level("INFO", "rq.worker")
    with Redis.from_url(server.tcp_url.replace("redis://", "redis://narrow:x@")) as redis:
        overheard = Overheard(redis, Scripts(redis, KEYS))
        listens_until(overheard, lambda: caplog.messages)
        overheard.write_down()
    (said,) = caplog.messages
    assert "may not listen on rq:pubsub:*" in said


def test_listening_goes_on_after_a_cut_and_after_silence(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheard_module, "ASK_AFTER", 0.1)
    enqueue(redis, "s", "j")
    Side(redis, "a").take_one()
    overheard = Overheard(redis, Scripts(redis, KEYS))
    for _ in range(5):  # asks, and is answered
        overheard.write_down()
        time.sleep(0.06)
    assert len(redis.client_list(_type="pubsub")) == 1
    redis.client_kill_filter(_type="pubsub")
    listens_until(overheard, redis.pubsub_numpat)
    stop(redis)
    listens_until(overheard, lambda: to_be_stopped(redis))
    overheard.close()


# -- its worker hears it, late or early --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["job", "execution"])
def test_a_worker_that_wakes_up_buried_passes_the_stop_on(redis: Redis, sleeper: ScriptedWorker, what: str) -> None:
    enqueue(redis, "s", "j")
    side, neighbour = Side(redis, "a"), Neighbour(redis, "b")
    claimed = side.take_one()
    sleeper.active.add([claimed])
    side.die()
    reap(neighbour.side)
    neighbour.take_one()
    if what == "job":
        sleeper.handle_payload(command(command="stop-job", job_id="j"))
    else:
        sleeper.handle_payload(command(command="stop-execution", job_id="j", execution_id=claimed.execution.id))
    assert to_be_stopped(redis)
    neighbour.pulse.beat()
    assert neighbour.wishes == [("j", "stopped")]


def test_a_stop_that_overtakes_the_answer_of_the_claim_is_kept(redis: Redis, sleeper: ScriptedWorker) -> None:
    enqueue(redis, "s", "j")
    side = Side(redis, "a")
    side.take_one()  # and nothing of it is among the active jobs yet, or the answer was lost
    sleeper.handle_payload(command(command="stop-job", job_id="j"))
    assert to_be_stopped(redis)
    assert side.source.recall([]) == 1
    assert side.take_one().stopped


def test_a_stop_of_a_job_that_is_over_is_ignored(
    redis: Redis, sleeper: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(redis, "s", "j")
    side = Side(redis, "b")
    side.take_one()
    sleeper.handle_payload(command(command="stop-job", job_id="j"))  # which a has never had
    sleeper.handle_payload(command(command="stop-job", job_id="nobody"))
    sleeper.handle_payload(command(command="stop-execution", job_id="j", execution_id="nobody"))
    assert not to_be_stopped(redis)
    assert [said for said in caplog.messages if "command ignored" in said] == [
        "Not working on job j, command ignored.",
        "Not working on job nobody, command ignored.",
        "Not working on execution nobody, command ignored.",
    ]


def test_who_had_a_job_is_forgotten_with_its_end(redis: Redis, sleeper: ScriptedWorker) -> None:
    enqueue(redis, "s", "j", kwargs={"text": "fail"}, retry=Retry(max=1, interval=60))
    dead = Side(redis, "dead")
    dead.take_one()
    dead.die()
    reap(Side(redis, "b"))
    assert redis.hexists("rq:job:j", "tokenloom_past")
    sleeper.work(burst=True)
    assert status(redis, "j") == "scheduled"
    assert Scripts(redis, KEYS)("stop", ["j", "dead", ""]) == 0
    assert not to_be_stopped(redis)
    assert not redis.hexists("rq:job:j", "tokenloom_past")


def test_no_more_is_remembered_of_the_past_than_is_needed(redis: Redis) -> None:
    enqueue(redis, "s", "j")
    redis.hset("rq:job:j", "tokenloom_past", msgpack.packb(["w:x", 5, {"a": 1}, *["e:y"] * 50_000]))
    watcher = Side(redis, "b")
    for number in range(40):
        side = Side(redis, f"a{number}")
        side.take_one()
        side.die()
        reap(watcher)
    past = msgpack.unpackb(redis.hget("rq:job:j", "tokenloom_past"))
    assert len(past) <= 34
    assert past[-2] == "w:a39"


# -- nobody hears it: RQ refuses ---------------------------------------------------------------------------------------


def can_let_fields_lapse(redis: Redis) -> bool:
    try:
        redis.hpexpire("no such hash", 1, "field")
    except ResponseError:
        return False
    return True


@pytest.fixture
def lapsing(redis: Redis) -> None:
    if not can_let_fields_lapse(redis):
        pytest.skip("fields of hashes lapse from Valkey 9 and Redis 7.4 on")


def test_when_the_only_worker_has_died_rq_refuses_once_the_lease_has_lapsed(
    redis: Redis, scripted: MakeWorker, lapsing: None
) -> None:
    worker = scripted(name="a", **QUICK)
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 1)
    time.sleep(2.5)
    assert field(redis, "rq:job:j", "worker_name") == "a", "as long as it lives"
    worker.kill()
    wait_until(lambda: not redis.exists(KEYS.worker("a")))
    wait_until(lambda: not redis.hexists("rq:job:j", "worker_name"), 1.5)
    with pytest.raises(InvalidJobOperation, match="not currently executing"):
        stop(redis)
    assert reap(Side(redis, "b")) == {"a": 1}
    assert ids(redis) == ["j"]


def test_a_worker_whose_lease_had_lapsed_is_found_again(redis: Redis, lapsing: None) -> None:
    neighbour = Neighbour(redis, "b")
    enqueue(redis, "s", "j")
    claimed = neighbour.take_one()
    redis.hdel("rq:job:j", "worker_name")
    redis.delete(KEYS.worker("b"))
    neighbour.pulse.beat()
    assert field(redis, "rq:job:j", "worker_name") == "b"
    assert 0 < redis.hpttl("rq:job:j", "worker_name")[0] <= 60_000
    redis.hdel("rq:job:j", "worker_name")
    redis.delete(claimed.execution.key)
    neighbour.pulse.beat()
    assert not redis.hexists("rq:job:j", "worker_name"), "that claim is over"


def test_a_finished_job_says_for_good_who_ran_it(redis: Redis, sleeper: ScriptedWorker) -> None:
    enqueue(redis, "s", "j")
    sleeper.work(burst=True)
    assert field(redis, "rq:job:j", "worker_name") == "a"
    if can_let_fields_lapse(redis):
        assert redis.hpttl("rq:job:j", "worker_name") == [-1]


def test_a_dead_workers_jobs_are_put_back_before_its_successor_loads_the_model(
    redis: Redis, scripted: MakeWorker, tmp_path: Path
) -> None:
    worker = scripted(name="a", lease=60)
    enqueue(redis, "s", "j", kwargs={"text": "hang"})
    wait_until(lambda: redis.llen("began") == 1)
    worker.kill()
    loading = tmp_path / "loading"
    worker.environment["SCRIPTED_LOADING"] = str(loading)
    worker.start(born=False)
    wait_until(loading.exists)
    assert ids(redis) == ["j"]
    with pytest.raises(InvalidJobOperation):
        stop(redis)
    assert redis.hget("rq:job:j", "tokenloom_deaths") == b"1"
    loading.unlink()
    wait_until(lambda: redis.llen("began") == 2)
    assert redis.hget("rq:job:j", "tokenloom_deaths") == b"1"
    assert worker.output().count("1 jobs of the last worker named a are back") == 1


@pytest.fixture
def waits_again(redis: Redis, sleeper: ScriptedWorker, request: pytest.FixtureRequest) -> None:
    """Job j has run once and waits to run again."""
    text, options = request.param
    enqueue(redis, "s", "j", kwargs={"text": text}, **options)
    sleeper.work(burst=True)


@pytest.mark.parametrize(
    "waits_again",
    [("fail", {"retry": Retry(max=1, interval=60)}), ("", {"repeat": Repeat(times=1, interval=60)}), ("fail", {})],
    ids=["retry", "repeat", "failed"],
    indirect=True,
)
@pytest.mark.usefixtures("waits_again")
def test_rq_refuses_to_stop_a_job_that_waits_for_its_next_run(redis: Redis) -> None:
    with pytest.raises(InvalidJobOperation):
        stop(redis)
