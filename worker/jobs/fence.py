"""Transactions that happen only while a job's execution is still this worker's."""

# mypy: disable-error-code="no-untyped-call"
# RQ and redis-py leave some of what is called here without annotations.
from __future__ import annotations

from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import WatchError


class Lost(Exception):
    """The execution is gone: the job was put back, taken by another worker, deleted, or has ended."""


class FencedPipeline(Pipeline):
    """A pipeline that also watches its link's fence and raises Lost when that is not there at the transaction."""

    def __init__(self, link: FencedLink) -> None:
        super().__init__(link.connection_pool, link.response_callbacks, True, None)
        self._link = link

    def watch(self, *names: Any) -> Any:
        answer = super().watch(*names, self._link.fence)
        if not self.execute_command("EXISTS", self._link.fence):
            self.reset()
            raise Lost(self._link.fence)
        return answer

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        try:
            return self._execute(raise_on_error)
        except Exception as error:
            self._link.trouble = error
            raise

    def _execute(self, raise_on_error: bool) -> list[Any]:
        if self.watching or not self.command_stack:
            return super().execute(raise_on_error)
        while True:
            stack = list(self.command_stack)
            try:
                self.watch()
                return super().execute(raise_on_error)
            except WatchError:  # a heartbeat touched the execution: nothing was done, so once more
                self.command_stack = stack


class FencedLink(Redis):
    """A client whose pipelines happen only while ``fence``, a key, is there. One thread at a time."""

    def __init__(self, link: Redis) -> None:
        super().__init__(connection_pool=link.connection_pool)
        self.fence = ""
        #: What the last transaction raised. RQ logs it and goes on as if all were well where a failure is stored.
        self.trouble: Exception | None = None

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> FencedPipeline:
        return FencedPipeline(self)
