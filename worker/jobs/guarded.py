"""RQ's Job, disarmed: nothing that a producer wrote into a job is ever imported, called or sent to unless it is on the
list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, cast
from urllib.parse import urlsplit

from redis.client import Pipeline
from rq.job import Job, JobStatus
from rq.webhook import Webhook

#: A worker waits for each webhook before it tells Redis how the next job ended.
MAX_WEBHOOKS = 4
MAX_WEBHOOK_SECONDS = 10


class GuardedJob(Job):
    """A job whose function cannot be run, and whose callbacks exist only if their names are allowed."""

    allowed: ClassVar[frozenset[str]] = frozenset()
    webhook_hosts: ClassVar[frozenset[str]] = frozenset()

    def callback_names(self) -> dict[str, str]:
        """The callbacks the job brings: which one -> its name."""
        named = {
            "success_callback": self._success_callback_name,
            "failure_callback": self._failure_callback_name,
            "stopped_callback": self._stopped_callback_name,
        }
        return {which: name for which, name in named.items() if name}

    def strange_webhook(self) -> str | None:
        """Why the worker will not call one of the job's webhooks: it reaches hosts that the producer may not."""
        if len(self.webhooks) > MAX_WEBHOOKS:
            return f"{len(self.webhooks)} webhooks; at most {MAX_WEBHOOKS} are accepted"
        return next((why for each in self.webhooks if (why := self._why_not(each))), None)

    def _why_not(self, webhook: Webhook) -> str | None:
        host = urlsplit(webhook.url).hostname or ""
        if host not in self.webhook_hosts and "*" not in self.webhook_hosts:
            listed = ", ".join(sorted(self.webhook_hosts)) or "none"
            return f"host {host[:80]!r} is not among those this worker calls (TOKENLOOM_WEBHOOK_HOSTS): {listed}"
        if webhook.timeout > MAX_WEBHOOK_SECONDS:
            return f"a timeout of {str(webhook.timeout)[:20]} s; at most {MAX_WEBHOOK_SECONDS} s are accepted"
        return None

    @property
    def success_callback(self) -> Callable[..., Any] | None:
        return cast("Callable[..., Any] | None", super().success_callback) if self._may("success_callback") else None

    @property
    def failure_callback(self) -> Callable[..., Any] | None:
        return cast("Callable[..., Any] | None", super().failure_callback) if self._may("failure_callback") else None

    @property
    def stopped_callback(self) -> Callable[..., Any] | None:
        return super().stopped_callback if self._may("stopped_callback") else None

    def set_status(self, status: JobStatus, pipeline: Pipeline | None = None) -> None:
        """RQ's, but never on its own: RQ marks a retry as scheduled ahead of the transaction that schedules it, which
        writes the status again. In between, a killed worker would lose the job.
        """
        self._status = status
        if pipeline is not None:
            super().set_status(status, pipeline)

    @property
    def func(self) -> NoReturn:
        raise RuntimeError(f"job {self.id}: a tokenloom worker imports no function of a job")

    def perform(self) -> NoReturn:
        raise RuntimeError(f"job {self.id}: a tokenloom worker runs no function of a job")

    def _may(self, which: str) -> bool:
        return self.callback_names().get(which) in self.allowed


def guarded(base: type[Job], allowed: frozenset[str], webhook_hosts: frozenset[str] = frozenset()) -> type[GuardedJob]:
    """The user's job class with the guard in front.

    ``allowed``: names of callbacks that jobs may bring. ``webhook_hosts``: hosts that their webhooks may call, ``*``
    for any.
    """
    bases = (GuardedJob,) if base is Job else (GuardedJob, base)
    fields = {"allowed": allowed, "webhook_hosts": webhook_hosts, "__module__": __name__}
    return cast(type[GuardedJob], type(f"Guarded{base.__name__}", bases, fields))
