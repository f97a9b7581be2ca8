"""A claim: one atomic step from queued to executing, in order, for the right worker only."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue
from rq.executions import Execution
from rq.job import Job
from rq.registry import StartedJobRegistry

from job_tools import KEYS, Side, bomb, enqueue, epoch_of, ids, owner_of, queue, raw_job, reap
from tokenloom.schemas import MsgpackSerializer
from tokenloom.schemas.keys import Keys
from tokenloom.worker.jobs.scripts import key_templates


def test_the_scripts_name_keys_as_everybody_else_does(redis: Redis) -> None:
    names = key_templates(KEYS)
    job = Job("j", connection=redis)
    execution = Execution("e", "j", redis, worker_name="w")
    assert names["session"] % "s" == KEYS.session("s")
    assert names["inbox"] % "w" == KEYS.worker_inbox("w")
    assert names["job"] % "j" == job.key
    assert names["execution"] % ("j", "e") == execution.key
    assert names["executions"] % "j" == job.execution_registry.key
    assert names["wip"] % "q" == StartedJobRegistry("q", connection=redis).key
    assert names["queue"] % "q" == Queue("q", connection=redis).key
    assert names["rq_executions"] % "w" == execution.worker_executions_key
    assert key_templates(Keys("other"))["jobs"] % "w" == "other:worker:w:jobs"


def test_claimed_jobs_come_in_order_and_count_as_started(redis: Redis) -> None:
    for number in range(5):
        enqueue(redis, f"s{number % 2}", f"j{number}")
    side = Side(redis, "a")
    claim = side.claim()

    assert [claimed.id for claimed in claim.jobs] == ["j0", "j1", "j2", "j3", "j4"]
    first = claim.jobs[0]
    assert first.request is not None
    assert first.request.session == "s0"
    assert first.epochs == {"s0": 1}
    assert owner_of(redis, "s0") == side.owner
    job = Job.fetch("j0", connection=redis, serializer=MsgpackSerializer)
    assert job.get_status() == "started"
    assert job.worker_name == "a"
    assert job.started_at is not None
    assert [each.id for each in job.get_executions()] == [first.execution.id]
    assert "j0" in job.started_job_registry
    assert redis.smembers("rq:worker:a:executions") >= {f"j0:{first.execution.id}".encode()}
    assert redis.zrange(KEYS.worker_jobs("a"), 0, -1) == [b"j0", b"j1", b"j2", b"j3", b"j4"]
    assert ids(redis) == []


def test_no_more_jobs_are_taken_than_asked_for(redis: Redis) -> None:
    for number in range(150):
        enqueue(redis, f"s{number}", f"j{number}")
    side = Side(redis, "a")
    assert side.take(2) == ["j0", "j1"]
    assert len(side.take(100)) == 100
    assert len(side.take(100)) == 48


def test_a_job_is_claimed_once_however_often_its_id_is_queued(redis: Redis) -> None:
    enqueue(redis, "s", "j")
    redis.rpush("rq:queue:steps", "j", "j")
    side = Side(redis, "a")
    claim = side.claim()
    assert [claimed.id for claimed in claim.jobs] == ["j"]
    assert claim.skipped == 2
    assert side.take() == []


def test_ids_without_a_waiting_job_are_dropped(redis: Redis) -> None:
    cancelled = enqueue(redis, "s", "cancelled")
    cancelled.cancel()
    redis.rpush("rq:queue:steps", "cancelled", "missing", "no good id", "a:b", b"\xff\xfe", "x" * 600)
    redis.set("rq:job:text", "not a hash")
    redis.rpush("rq:queue:steps", "text")
    enqueue(redis, "s", "good")
    claim = Side(redis, "a").claim()
    assert [claimed.id for claimed in claim.jobs] == ["good"]
    assert claim.skipped == 7
    assert not redis.exists("rq:job:missing")


def test_a_waiting_job_no_longer_expires_once_it_is_claimed(redis: Redis) -> None:
    enqueue(redis, "s", "j", ttl=100)
    assert redis.ttl("rq:job:j") > 0
    assert Side(redis, "a").take() == ["j"]
    assert redis.ttl("rq:job:j") == -1


def test_queues_are_emptied_in_order_or_in_turn(redis: Redis) -> None:
    for number in range(2):
        enqueue(redis, f"h{number}", f"high{number}", queue_name="high")
        enqueue(redis, f"l{number}", f"low{number}", queue_name="low")
    assert Side(redis, "a", queues=("high", "low")).take(3) == ["high0", "high1", "low0"]
    redis.flushall()
    for number in range(2):
        enqueue(redis, f"h{number}", f"high{number}", queue_name="high")
        enqueue(redis, f"l{number}", f"low{number}", queue_name="low")
    assert Side(redis, "a", queues=("high", "low")).take(3, in_turn=True) == ["high0", "low0", "high1"]


def test_a_session_nobody_opens_does_not_stay_owned_for_good(redis: Redis) -> None:
    enqueue(redis, "s", "j")
    redis.hset(KEYS.session("open"), "state", "open")
    enqueue(redis, "open", "k")
    Side(redis, "a").claim()
    assert 0 < redis.ttl(KEYS.session("s")) <= 600
    assert redis.ttl(KEYS.session("open")) == -1


def test_suspended_means_that_nothing_is_taken(redis: Redis) -> None:
    enqueue(redis, "s", "j")
    redis.set("rq:suspended", 1)
    claim = Side(redis, "a").claim()
    assert claim.standing == "suspended"
    assert not claim.jobs
    assert ids(redis) == ["j"]


def test_a_worker_taken_for_dead_gets_nothing(redis: Redis) -> None:
    side, other = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j")
    side.die()
    assert side.claim().standing == "lapsed"
    reap(other)
    assert side.claim().standing == "lost"
    assert ids(redis) == ["j"]


# -- sessions that the producer did not name ---------------------------------------------------------------------------


@pytest.mark.parametrize("meta", [{}, {"sessions": []}, {"sessions": "s"}, {"sessions": ["a b"]}, {"other": 1}])
def test_without_usable_meta_the_sessions_are_read_from_the_job(redis: Redis, meta: dict[str, object]) -> None:
    options: dict[str, Any] = {"meta": meta} if meta else {}
    enqueue(redis, "s", "j", named=False, kwargs=None, **options)
    enqueue(redis, "s", "k")
    side = Side(redis, "a")
    claim = side.claim()
    assert [claimed.id for claimed in claim.jobs] == ["j", "k"]
    assert claim.jobs[0].epochs == {"s": 1}
    assert claim.jobs[0].refusal is None
    assert owner_of(redis, "s") == side.owner


@pytest.mark.parametrize(
    "meta", [b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff", b"\xc7\x05\x01aaaaa", b"\xc1", b"\x81\xa8"]
)
def test_hostile_meta_is_as_good_as_none(redis: Redis, meta: bytes) -> None:
    enqueue(redis, "s", "j", named=False)
    redis.hset("rq:job:j", "meta", meta)
    (claimed,) = Side(redis, "a").claim().jobs
    assert claimed.epochs == {"s": 1}
    assert claimed.request is not None


def test_jobs_without_meta_keep_their_order_on_the_way_to_their_owner(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    assert a.take() == ["j0"]
    enqueue(redis, "s", "j1", named=False)
    enqueue(redis, "s", "j2")
    enqueue(redis, "s", "j3", named=False)
    assert b.take() == []
    assert ids(redis, KEYS.worker_inbox("a")) == ["j1", "j2", "j3"]


def test_meta_that_contradicts_the_job_is_refused(redis: Redis) -> None:
    enqueue(redis, "theirs", "j", kwargs={"session": "mine"})
    claimed = Side(redis, "a").take_one()
    assert claimed.request is None
    assert claimed.refusal is not None
    assert claimed.refusal.body.field == "meta.sessions"
    assert claimed.session == "mine"


def test_a_session_key_that_is_no_hash_blocks_nobody(redis: Redis) -> None:
    redis.set(KEYS.session("s"), "text")
    enqueue(redis, "s", "j")
    enqueue(redis, "t", "k")
    claims = Side(redis, "a").claim().jobs
    assert [(claimed.id, claimed.epochs) for claimed in claims] == [("j", {"s": -1}), ("k", {"t": 1})]


# -- several workers ---------------------------------------------------------------------------------------------------


def test_a_job_of_another_workers_session_goes_to_its_inbox_in_order(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    assert a.take() == ["j0"]
    for number in range(1, 4):
        enqueue(redis, "s", f"j{number}")
        enqueue(redis, f"t{number}", f"k{number}")
    claim = b.claim()
    assert [claimed.id for claimed in claim.jobs] == ["k1", "k2", "k3"]
    assert claim.routed == 3
    assert redis.hget("rq:job:j1", "status") == b"queued"
    enqueue(redis, "s", "j4")
    assert a.take() == ["j1", "j2", "j3", "j4"]
    assert epoch_of(redis, "s") == 1


def test_clone_targets_nobody_owns_follow_the_source(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    a.take()
    clone = "tokenloom.schemas.jobs.clone"
    enqueue(redis, "s", "c", function=clone, others=("t1", "t2"), kwargs={"targets": ["t1", "t2"]})
    enqueue(redis, "t1", "j1")
    assert b.take() == []
    assert owner_of(redis, "t1") == owner_of(redis, "t2") == a.owner
    claimed = a.claim().jobs
    assert [each.id for each in claimed] == ["c", "j1"]
    assert claimed[0].epochs == {"s": 1, "t1": 1, "t2": 1}


def test_a_clone_target_that_another_living_worker_owns_is_told_apart(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "t", "j0")
    b.take()
    clone = "tokenloom.schemas.jobs.clone"
    enqueue(redis, "s", "c", function=clone, others=("t",), kwargs={"targets": ["t"]})
    assert a.take_one().epochs == {"s": 1, "t": -1}
    assert owner_of(redis, "t") == b.owner


def test_a_dead_owners_jobs_go_before_newer_ones_of_the_session(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    enqueue(redis, "s", "j1")
    a.take()
    enqueue(redis, "s", "j2")
    b.take()  # routed to a's inbox
    enqueue(redis, "s", "j3")
    a.die()
    claim = b.claim()
    assert [(each.id, each.deaths) for each in claim.jobs] == [("j0", 1), ("j1", 1), ("j2", 0), ("j3", 0)]
    assert claim.requeued == 3
    assert owner_of(redis, "s") == b.owner
    assert epoch_of(redis, "s") == 2


def test_sessions_of_a_worker_that_died_idle_are_taken_over(redis: Redis) -> None:
    a, b = Side(redis, "a"), Side(redis, "b")
    redis.hset(KEYS.session("s"), mapping={"owner": a.owner, "epoch": 7, "state": "open"})
    a.die()
    enqueue(redis, "s", "j")
    assert b.take_one().epochs == {"s": 8}


def test_a_claim_whose_answer_was_lost_is_put_back_and_keeps_its_order(redis: Redis) -> None:
    side = Side(redis, "a")
    for number in range(4):
        enqueue(redis, "s", f"j{number}")
    assert side.take(1) == ["j0"]
    side.claim(2)  # suppose nobody saw the answer
    assert side.source.recall(["j0"]) == 2
    assert redis.lrange(KEYS.worker_inbox("a"), 0, -1) == [b"j1", b"j2"]
    assert ids(redis) == ["j3"]
    assert owner_of(redis, "s") == side.owner
    assert epoch_of(redis, "s") == 1
    assert redis.zrange("rq:wip:steps", 0, -1) != []
    assert redis.zcard("rq:wip:steps") == 1
    assert [(each.id, each.deaths) for each in side.claim().jobs] == [("j1", 0), ("j2", 0), ("j3", 0)]


def test_what_was_routed_here_after_a_lost_answer_does_not_pass_what_the_answer_held(redis: Redis) -> None:
    side, other = Side(redis, "a"), Side(redis, "b")
    enqueue(redis, "s", "j0")
    assert side.take(1) == ["j0"]
    enqueue(redis, "s", "j1")
    side.claim(1)  # suppose nobody saw the answer
    enqueue(redis, "s", "j2")
    assert other.claim().routed == 1
    assert side.source.recall(["j0"]) == 1
    enqueue(redis, "s", "j3")
    assert other.claim().routed == 1
    assert side.take() == ["j1", "j2", "j3"]


# -- what nobody should enqueue ----------------------------------------------------------------------------------------


def refusal(redis: Redis, **options: object) -> tuple[str, str, str | None]:
    """Code, message and session of the refusal of the one job in the queue; a good job beside it must go through."""
    enqueue(redis, "bystander", "good")
    bad, good = Side(redis, "a", **options).claim().jobs  # type: ignore[arg-type]
    assert good.id == "good"
    assert good.request is not None
    assert good.refusal is None
    assert bad.request is None
    assert bad.refusal is not None
    assert not bad.job.should_retry
    return bad.refusal.code, str(bad.refusal), bad.session


def test_a_foreign_function_is_refused_and_never_imported(redis: Redis) -> None:
    queue(redis).enqueue("os.system", kwargs={"command": "true"}, job_id="bad")
    code, message, session = refusal(redis)
    assert (code, session) == ("unknown_job", None)
    assert "os.system" in message


def test_positional_arguments_and_objects_are_refused(redis: Redis) -> None:
    raw_job(redis, "bad", ["tokenloom.schemas.jobs.close", None, ["s"], {}])
    assert refusal(redis)[0] == "invalid"
    redis.flushall()
    raw_job(redis, "bad", ["tokenloom.schemas.jobs.close", "object", [], {"session": "s"}])
    assert refusal(redis)[0] == "invalid"


def test_pickle_is_refused_with_a_hint(redis: Redis) -> None:
    Queue("steps", connection=redis).enqueue("tokenloom.schemas.jobs.close", session="s", job_id="bad")
    code, message, _ = refusal(redis)
    assert code == "invalid"
    assert "pickle" in message
    assert "MsgpackSerializer" in message


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", [1, 2], bomb(1 << 28), b"\0" * (17 << 20)],
    ids=["none", "bad", "deep", "promises", "not four", "zip bomb", "too large"],
)
def test_data_that_is_no_job_is_refused(redis: Redis, data: object) -> None:
    raw_job(redis, "bad", data)
    assert refusal(redis)[0] == "invalid"


@pytest.mark.parametrize(
    "field",
    [("timeout", "soon"), ("result_ttl", "9" * 30), ("created_at", "yesterday"), ("retry_intervals", "[1, null]")],
)
def test_fields_that_rq_could_not_read_are_refused(redis: Redis, field: tuple[str, str]) -> None:
    raw_job(redis, "bad", ["tokenloom.schemas.jobs.close", None, [], {"session": "s"}], **dict([field]))
    code, message, session = refusal(redis)
    assert (code, session) == ("invalid", "s"), message


def test_a_callback_outside_the_list_is_refused_and_unreachable(redis: Redis) -> None:
    enqueue(redis, "s", "bad", on_failure=Callback("os.system"))
    code, message, session = refusal(redis, callbacks=("mine.done",))
    assert (code, session) == ("unknown_job", "s")
    assert "os.system" in message
    assert "mine.done" in message


def test_a_callback_on_the_list_is_served(redis: Redis) -> None:
    enqueue(redis, "s", "j", on_success=Callback("job_tools.queue"))
    claimed = Side(redis, "a", callbacks=("job_tools.queue",)).take_one()
    assert claimed.request is not None
    callback: Any = claimed.job.success_callback
    assert callback is queue
    stranger = Side(redis, "b")
    enqueue(redis, "t", "k", on_success=Callback("job_tools.queue"))
    assert stranger.take_one().job.success_callback is None


def test_an_unknown_version_says_so(redis: Redis) -> None:
    enqueue(redis, "s", "bad", kwargs={"v": 99})
    assert refusal(redis)[0] == "unknown_version"


def test_an_id_too_long_for_events_is_refused(redis: Redis) -> None:
    enqueue(redis, "s", "x" * 200)
    code, message, session = refusal(redis)
    assert (code, session) == ("invalid", None)
    assert "128" in message


def test_a_job_of_another_namespace_is_refused_with_both_names(redis: Redis) -> None:
    enqueue(redis, "s", "bad", meta={"namespace": "theirs"})
    code, message, session = refusal(redis)
    assert (code, session) == ("invalid", None), "nobody reads this namespace's events of it"
    assert "of namespace 'theirs'" in message
    assert "serves 'tokenloom'" in message


@pytest.mark.parametrize("meta", [{}, {"namespace": "tokenloom"}])
def test_a_job_of_this_namespace_or_of_none_is_served(redis: Redis, meta: dict[str, str]) -> None:
    enqueue(redis, "s", "j", meta=meta)
    assert Side(redis, "a").take_one().request is not None
