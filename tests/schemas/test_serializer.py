"""What RQ puts through its serializer comes out as RQ needs it, and nothing is ever unpickled."""

from __future__ import annotations

import pickle

import pytest
from redis import Redis
from rq import Queue, Retry
from rq.job import Job
from rq.results import Result
from rq.serializers import resolve_serializer

from tokenloom.schemas import CodecError, MsgpackSerializer, StepResult, Usage


def test_rq_accepts_it_by_its_import_path() -> None:
    assert resolve_serializer("tokenloom.schemas.MsgpackSerializer") is MsgpackSerializer


def test_a_job_its_meta_and_its_result_come_back_from_redis(redis: Redis) -> None:
    queue = Queue("steps", connection=redis, serializer=MsgpackSerializer)
    kwargs = {"session": "a", "tokens": [1, 2], "generation": {"logit_bias": {5: 1.5}}}
    meta = {"sessions": ["a", "b"], "nested": {"n": 1}}
    queue.enqueue(
        "tokenloom.schemas.jobs.step", kwargs=kwargs, job_id="one", meta=meta, retry=Retry(max=2, interval=[1, 2])
    )
    job = Job.fetch("one", connection=redis, serializer=MsgpackSerializer)
    assert (job.func_name, job.instance, list(job.args), job.kwargs) == (
        "tokenloom.schemas.jobs.step",
        None,
        [],
        kwargs,
    )
    assert job.meta == meta
    assert job.retry_intervals == [1, 2]
    result = StepResult(
        session="a", step="one", reason="stop", tokens=[1], text="x", length=1, usage=Usage(appended=0, generated=1)
    )
    Result.create(job, Result.Type.SUCCESSFUL, ttl=10, return_value=result)
    assert StepResult.model_validate(job.return_value()) == result


def test_a_value_it_cannot_write_is_replaced_by_rq_and_not_lost_silently(redis: Redis) -> None:
    queue = Queue("steps", connection=redis, serializer=MsgpackSerializer)
    job = queue.enqueue("tokenloom.schemas.jobs.step", job_id="one")
    Result.create(job, Result.Type.SUCCESSFUL, ttl=10, return_value=object())
    assert "Unserializable" in str(job.return_value())


class Evil:
    ran = False

    def __reduce__(self) -> tuple[object, ...]:
        return (setattr, (Evil, "ran", True))


def test_a_pickle_is_refused_and_not_run() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(CodecError):
            MsgpackSerializer.loads(pickle.dumps(Evil(), protocol=protocol))
    assert not Evil.ran
