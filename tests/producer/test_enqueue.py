"""A step is a plain RQ job, checked in the caller's process, and enqueued once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from redis import Redis
from rq import Callback, Queue, Retry
from rq.job import Dependency, JobStatus
from rq.registry import ScheduledJobRegistry

from tokenloom.producer import (
    ChatMessage,
    Client,
    InvalidRequest,
    NoSuchStep,
    Overloaded,
    RedisUnavailable,
    TokenloomError,
)
from tokenloom.schemas import AppendedEvent, decode, parse_request


def test_a_step_is_a_plain_rq_job(client: Client, redis: Redis) -> None:
    step = client.session("a").step("hello", step_id="one", max_tokens=3, temperature=0, stop="x")
    assert redis.lrange("rq:queue:steps", 0, -1) == [b"one"]
    assert redis.sismember("rq:queues", "rq:queue:steps")
    job = step.job
    assert (job.id, job.get_status(), job.func_name) == ("one", JobStatus.QUEUED, "tokenloom.schemas.jobs.step")
    request = parse_request(job.func_name, job.kwargs)
    assert request.model_dump(exclude_none=True) == {
        "v": 1,
        "session": "a",
        "text": "hello",
        "generation": {"max_tokens": 3, "temperature": 0, "stop": ["x"]},
    }
    assert (job.timeout, job.result_ttl, job.failure_ttl) == (3600, 3600, 7 * 24 * 3600)
    assert job.description == "step a"
    # The worker routes by the meta, straight from the hash.
    assert decode(redis.hget("rq:job:one", "meta")) == {"sessions": ["a"], "namespace": "tokenloom", "after": "0-0"}


def test_a_clone_names_every_session_it_needs(client: Client, redis: Redis) -> None:
    pending = client.session("a").clone(targets=["b", "c"], wait=False)
    assert decode(redis.hget(f"rq:job:{pending.id}", "meta"))["sessions"] == ["a", "b", "c"]
    generated = client.session("a" * 128).clone(3, wait=False).job.kwargs["targets"]
    assert len(set(generated)) == 3
    assert all(len(target) <= 128 for target in generated)


def test_a_tenant_and_the_users_meta_travel(redis_url: str) -> None:
    client = Client(redis_url, tenant="team-1")
    job = client.session("a").step("x", meta={"mine": [1]}).job
    own = {"sessions": ["a"], "namespace": "tokenloom", "tenant": "team-1", "after": "0-0"}
    assert job.meta == {"mine": [1], **own}
    assert job.kwargs["tenant"] == "team-1"
    for name in ("sessions", "namespace"):
        with pytest.raises(InvalidRequest, match=f"the name '{name}' is reserved"):
            client.session("a").step("x", meta={name: []})


def test_options_of_rq_reach_rq(client: Client) -> None:
    job = (
        client.session("a")
        .step(
            "x",
            job_timeout="2m",
            result_ttl=5,
            retry=Retry(max=3, interval=[1, 2, 3]),
            on_success=Callback("my.module.function"),
            on_failure=Callback("my.module.other"),
            description="mine",
        )
        .job
    )
    assert (job.timeout, job.result_ttl, job.retries_left, job.description) == (120, 5, 3, "mine")
    assert job._success_callback_name == "my.module.function"
    assert job._failure_callback_name == "my.module.other"


def test_at_front_goes_before_the_others(client: Client, redis: Redis) -> None:
    client.session("a").step("x", step_id="one")
    client.session("b").step("x", step_id="two", at_front=True)
    assert redis.lrange("rq:queue:steps", 0, -1) == [b"two", b"one"]


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), range(1, 3)])
def test_tokens_may_be_any_sequence(client: Client, tokens: Any) -> None:
    assert client.session("a").step(tokens=tokens).job.kwargs["tokens"] == [1, 2]


def test_integers_of_other_libraries_count_as_tokens(client: Client) -> None:
    class Integer:
        def __index__(self) -> int:
            return 9

    assert client.session("a").step(tokens=cast("Any", [Integer()])).job.kwargs["tokens"] == [9]


def test_messages_may_be_maps_or_models(client: Client) -> None:
    messages = [{"role": "system", "content": "s"}, ChatMessage(role="user", content="u")]
    assert client.session("a").step(messages=messages).job.kwargs["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]


def test_a_deadline_may_be_given_three_ways(client: Client) -> None:
    session = client.session("a")
    moment = datetime(2040, 1, 1, tzinfo=timezone.utc)
    assert session.step("x", deadline=5.5).job.kwargs["deadline"] == 5.5
    assert session.step("x", deadline=moment).job.kwargs["deadline"] == moment.timestamp()
    soon = session.step("x", deadline=timedelta(seconds=60)).job.kwargs["deadline"]
    assert abs(soon - datetime.now().timestamp() - 60) < 5
    with pytest.raises(InvalidRequest, match="needs a time zone"):
        session.step("x", deadline=datetime(2040, 1, 1))


@pytest.mark.parametrize(
    ("call", "field", "limit"),
    [
        (lambda client: client.session("a b").step("x"), "session", "1-128 characters"),
        (lambda client: client.session("a").step(tokens=[-1]), "tokens.0", "0 or more"),
        (lambda client: client.session("a").step(tokens=5), "tokens", "expected a list"),
        (lambda client: client.session("a").step(5), "text", "expected text"),
        (lambda client: client.session("a").step("x", temperature=-1), "generation.temperature", "0 or more"),
        (lambda client: client.session("a").step("x", top_p="high"), "generation.top_p", "expected a number"),
        (lambda client: client.session("a").step(messages=[{"role": "user"}]), "messages.0.content", "required"),
        (lambda client: client.session("a").step(messages="hello"), "messages", "expected a list"),
        (lambda client: client.session("a").clone(0), "targets", "at least 1 item"),
        (lambda client: client.session("a").clone(2000), "targets", "at most 1024 items"),
        (lambda client: client.session("a").rewind(-1), "to", "0 or more"),
        (lambda client: client.open(seed=-1), "seed", "0 or more"),
        (lambda client: client.open(defaults={"temprature": 1}), "defaults.temprature", "the fields are"),
    ],
)
def test_a_wrong_request_is_refused_before_it_is_enqueued(
    client: Client, redis: Redis, call: Callable[[Client], object], field: str, limit: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call(client)
    assert caught.value.body.field == field
    assert limit in (caught.value.body.limit or "")
    assert redis.keys() == []


def test_a_request_too_large_is_refused_with_the_limit(client: Client, redis: Redis) -> None:
    messages = [{"role": "user", "content": "y" * (4 << 20)}] * 5
    with pytest.raises(InvalidRequest, match=r"encoded size is 20971.*the limit is 16777216"):
        client.session("a").step(messages=messages)
    assert redis.llen("rq:queue:steps") == 0


def test_an_unknown_option_is_a_type_error_that_lists_the_known(client: Client) -> None:
    with pytest.raises(
        TypeError, match=r"'temprature'; sampling settings are .*temperature.*options of RQ are .*retry"
    ):
        client.session("a").step("x", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'max_tokens'; options of RQ are"):
        client.session("a").rewind(0, max_tokens=1)  # type: ignore[call-overload]


WAYS: dict[str, dict[str, Any]] = {
    "now": {},
    "in": {"enqueue_in": 60},
    "at": {"enqueue_at": datetime(2040, 1, 1, tzinfo=timezone.utc)},
    "after another": {"depends_on": "first"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_same_step_id_twice_is_one_job(client: Client, redis: Redis, way: dict[str, Any]) -> None:
    session = client.session("a")
    session.step("first", step_id="first")
    first = session.step("x", step_id="one", **way)
    job_hash = redis.hgetall("rq:job:one")
    again = session.step("x", step_id="one", **way)
    assert again.id == first.id
    assert redis.hgetall("rq:job:one") == job_hash
    queued = redis.lrange("rq:queue:steps", 0, -1)
    scheduled = ScheduledJobRegistry(queue=client.queue).get_job_ids()  # type: ignore[no-untyped-call]
    deferred = client.queue.deferred_job_registry.get_job_ids()
    assert (queued + scheduled + deferred).count(b"one") + (scheduled + deferred).count("one") == 1


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_same_step_id_from_many_threads_is_one_job(client: Client, redis: Redis, way: dict[str, Any]) -> None:
    client.session("a").step("first", step_id="first")
    with ThreadPoolExecutor(8) as pool:
        steps = list(pool.map(lambda _: client.session("a").step("x", step_id="one", **way), range(24)))
    assert {step.id for step in steps} == {"one"}
    assert redis.lrange("rq:queue:steps", 0, -1).count(b"one") == (1 if not way else 0)
    assert sum(not step._watch.attached for step in steps) == 1


def test_an_id_that_another_job_has_is_refused(client: Client) -> None:
    client.session("a").step("x", step_id="one")
    with pytest.raises(InvalidRequest, match=r"the id one is taken by another job \(step a\)"):
        client.session("b").step("x", step_id="one")


def test_dependencies_may_be_our_handles(client: Client, worker: Any) -> None:
    session = client.session("a")
    opened = client.open("a", wait=False)
    first = session.step("x", depends_on=opened)
    second = session.step("x", depends_on=[first, opened.id])
    third = session.step("x", depends_on=Dependency(jobs=[second.job], allow_failure=True))
    assert first.job.get_status() == JobStatus.DEFERRED
    assert set(second.job._dependency_ids) == {first.id, opened.id}
    assert third.job.allow_dependency_failures
    worker.succeed(opened.id, None)
    assert session.step("x", depends_on=opened).job.get_status() == JobStatus.QUEUED


def test_a_step_can_be_handed_to_rqs_own_methods(client: Client, redis: Redis) -> None:
    spec = client.session("a").job("x", step_id="one", max_tokens=3)
    queue: Queue = client.queue
    queue.enqueue_in(timedelta(hours=1), spec.func, **spec.options)
    assert client.step(spec.id).job.get_status() == JobStatus.SCHEDULED
    other = client.session("a").job("x")
    queue.enqueue(other.func, **other.options)
    assert redis.lrange("rq:queue:steps", 0, -1) == [other.id.encode()]
    assert client.step(other.id).session == "a"


def test_where_its_events_begin_is_remembered_with_the_job(client: Client, worker: Any) -> None:
    before = worker.emit("a", "old", AppendedEvent, position=0, tokens=[1])
    step = client.session("a").step("x")
    assert step.job.meta["after"] == before


def test_a_step_nobody_knows_is_not_found(client: Client) -> None:
    with pytest.raises(NoSuchStep, match="RQ has no job gone"):
        client.step("gone")


def test_without_redis_the_message_says_where_it_was_sought_and_what_to_do() -> None:
    client = Client("redis://someone:secret@127.0.0.1:1/3")
    for call in (
        client.open,
        client.session("a").step,
        client.sessions,
        lambda: client.step("x"),
        client.session("a").length,
    ):
        with pytest.raises(RedisUnavailable) as caught:
            call()
        message = str(caught.value)
        assert "redis://127.0.0.1:1/3" in message
        assert "valkey-server" in message
        assert "REDIS_URL" in message
        assert "secret" not in message
        assert isinstance(caught.value, ConnectionError)
        assert not isinstance(caught.value, TokenloomError)


def test_a_wrong_password_is_said(redis: Redis, valkey: Any) -> None:
    redis.acl_setuser("someone", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"])
    try:
        client = Client(valkey.tcp_url.replace("//", "//someone:wrong@"))
        with pytest.raises(RedisUnavailable, match=r"refused the login.*check user and password"):
            client.open()
        with pytest.raises(RedisUnavailable, match="refused the login"):
            client.sessions()
    finally:
        redis.acl_deluser("someone")


def test_the_address_comes_from_the_environment_from_where_workers_have_it_first(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    assert "127.0.0.1:1" in repr(Client())
    monkeypatch.setenv("RQ_REDIS_URL", redis_url)
    assert redis_url in repr(Client())


def test_what_is_not_an_address_or_decodes_is_refused(redis_url: str) -> None:
    with pytest.raises(ValueError, match="'localhost:6379' is not a Redis URL"):
        Client("localhost:6379")
    with pytest.raises(ValueError, match="decode_responses=True cannot be used"):
        Client(Redis.from_url(redis_url, decode_responses=True))


def test_a_full_queue_refuses_new_jobs_but_no_known_id_and_no_close(redis: Redis) -> None:
    client = Client(redis, max_queue=2)
    session = client.session("a")
    session.step("x", step_id="one")
    session.step("x", step_id="two")
    with pytest.raises(Overloaded) as refused:
        session.step("x", step_id="three")
    body = refused.value.body
    assert (body.code, body.field, body.value, body.limit) == ("overloaded", "max_queue", "2", "fewer than 2")
    assert "queue 'steps' has 2 jobs waiting" in body.message
    assert session.step("x", step_id="two").id == "two"
    session.close(wait=False)
    assert redis.llen("rq:queue:steps") == 3


def test_a_step_id_that_rq_would_refuse_is_an_invalid_request(client: Client, redis: Redis) -> None:
    with pytest.raises(InvalidRequest) as refused:
        client.session("a").step("x", step_id="order 17")
    body = refused.value.body
    assert (body.field, body.value) == ("step_id", "order 17")
    assert body.limit == "1-128 characters: letters, digits, underscore, dash"
    assert body.message.endswith(f"; {body.limit}")
    assert not redis.keys("rq:*")
