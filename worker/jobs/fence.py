"""Transactions that happen only while a job's execution is still this worker's."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import WatchError


class Lost(Exception):
    """The execution is gone: the job was put back, taken by another worker, deleted, or has ended."""


class FencedPipeline(Pipeline):
    """A pipeline that also watches one key and raises Lost when it is not there at the moment of the transaction."""

    def __init__(self, link: Redis, fence: str) -> None:
        super().__init__(link.connection_pool, link.response_callbacks, True, None)
        self._fence = fence

    def watch(self, *names: Any) -> Any:
        answer = super().watch(*names, self._fence)
        if not self.execute_command("EXISTS", self._fence):
            self.reset()
            raise Lost(self._fence)
        return answer

    def execute(self, raise_on_error: bool = True) -> list[Any]:
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
    """A client whose pipelines are fenced by ``fence``, a key. One thread at a time."""

    def __init__(self, link: Redis) -> None:
        super().__init__(connection_pool=link.connection_pool)
        self.fence = ""
        #: What the last transaction raised. RQ logs it and goes on as if all were well where a failure is stored.
        self.trouble: Exception | None = None

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> FencedPipeline:
        link = self

        class Watched(FencedPipeline):
            def execute(self, raise_on_error: bool = True) -> list[Any]:
                try:
                    return super().execute(raise_on_error)
                except WatchError:
                    raise
                except Exception as error:
                    link.trouble = error
                    raise

        return Watched(self, self.fence)
