"""A session as a service holds it: a name and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from redis import Redis

from tokenloom.schemas.base import Versioned
from tokenloom.schemas.events import Event
from tokenloom.schemas.log import unpack
from tokenloom.schemas.records import CloneResult, CloseResult, OpenResult, RewindResult
from tokenloom.schemas.requests import CloseRequest, Request, RewindRequest

from .base import Message, Office
from .connect import reaching
from .enqueue import JobSpec
from .following import BEGINNING, following
from .staying import Stays
from .step import Pending, Step
from .talk import stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import RQOptions, StepOptions

T = TypeVar("T")

#: Seconds that open, clone, rewind and close wait by default.
WAIT = 60.0


class Session(Stays):
    """A handle; making one asks Redis nothing. ``opened`` is what opening it returned, for the one who did."""

    _instead = "send its id, and ask a Client there for session(id)"

    def __init__(self, connection: Redis, office: Office, id: str, opened: OpenResult | None = None) -> None:
        self._connection = connection
        self._office = office
        self.id = id
        self.opened = opened

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    def step(
        self,
        text: str | None = None,
        *,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        step_id: str | None = None,
        deadline: float | datetime | timedelta | None = None,
        at_length: int | None = None,
        **options: Unpack[StepOptions],
    ) -> Step:
        """Appends text, tokens or chat messages (or nothing), then generates. Returns once the job is in the queue.

        The same ``step_id`` again finds the step that has it, and runs nothing. ``deadline`` (unix seconds, a datetime
        with a zone, or a timedelta from now) ends the step as ``timeout``; RQ's ``job_timeout``, an hour by default,
        does too. ``at_length`` refuses the step when the log is not that long. ``options`` are sampling settings, such
        as ``max_tokens`` and ``temperature``, and those of RQ, such as ``depends_on``, ``retry``, ``on_success``.

        Raises InvalidRequest and RedisUnavailable; a session that does not exist is found out by the worker, and
        raised by ``result``.
        """
        request, rq = self._office.step_request(self.id, text, tokens, messages, deadline, at_length, options)
        return Step(self._connection, self._office, self._office.place(request, rq, step_id))

    def job(
        self,
        text: str | None = None,
        *,
        tokens: Sequence[int] | None = None,
        messages: Sequence[Message] | None = None,
        step_id: str | None = None,
        deadline: float | datetime | timedelta | None = None,
        at_length: int | None = None,
        **options: Unpack[StepOptions],
    ) -> JobSpec:
        """The step as RQ's own methods take it: ``queue.enqueue_at(when, spec.func, **spec.options)``.

        The queue must use MsgpackSerializer, as ``client.queue`` does. ``client.step(spec.id, session)`` follows it.
        """
        request, rq = self._office.step_request(self.id, text, tokens, messages, deadline, at_length, options)
        return self._office.spec(request, rq, step_id)

    @overload
    def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: Literal[True] = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> list[Session]: ...

    @overload
    def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: Literal[False],
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> Pending[list[Session]]: ...

    def clone(
        self,
        n: int = 1,
        *,
        targets: Sequence[str] | None = None,
        upto: int | None = None,
        seeds: Sequence[int] | None = None,
        wait: bool = True,
        timeout: float | None = WAIT,
        **rq: Unpack[RQOptions],
    ) -> list[Session] | Pending[list[Session]]:
        """``n`` new sessions, or the named ``targets``, holding the first ``upto`` tokens (all by default) of this one.

        Each gets its own seed, so that they differ from here on; the same ``seeds`` make them alike.
        """

        def made(result: Versioned) -> list[Session]:
            assert isinstance(result, CloneResult)
            return [Session(self._connection, self._office, target) for target in result.targets]

        return self._do(self._office.clone_request(self.id, n, targets, upto, seeds), made, wait, timeout, rq)

    @overload
    def rewind(
        self, to: int, *, wait: Literal[True] = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> RewindResult: ...

    @overload
    def rewind(
        self, to: int, *, wait: Literal[False], timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> Pending[RewindResult]: ...

    def rewind(
        self, to: int, *, wait: bool = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> RewindResult | Pending[RewindResult]:
        """Drops all of the log but its first ``to`` tokens."""

        def made(result: Versioned) -> RewindResult:
            assert isinstance(result, RewindResult)
            return result

        return self._do(self._office.request(RewindRequest, session=self.id, to=to), made, wait, timeout, rq)

    @overload
    def close(
        self, *, wait: Literal[True] = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> CloseResult: ...

    @overload
    def close(
        self, *, wait: Literal[False], timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> Pending[CloseResult]: ...

    def close(
        self, *, wait: bool = True, timeout: float | None = WAIT, **rq: Unpack[RQOptions]
    ) -> CloseResult | Pending[CloseResult]:
        """Ends the session. Closing twice is not an error."""

        def made(result: Versioned) -> CloseResult:
            assert isinstance(result, CloseResult)
            return result

        return self._do(self._office.request(CloseRequest, session=self.id), made, wait, timeout, rq)

    def events(self, from_id: str = BEGINNING) -> Iterator[Event]:
        """All events of the session after ``from_id``, then those to come, until it is closed. ``$`` is from now on."""
        office = self._office
        follow = following(office.keys, [self.id], from_id, where=office.where, patience=office.patience)
        return stream(follow.events(until_closed=self.id), self._connection)

    def length(self) -> int | None:
        """How many tokens the log has now; None when there is no such session."""
        keys = self._office.keys
        with reaching(self._office.where):
            value: Any = self._connection.hget(keys.session(self.id), "length")
        return None if value is None else int(value)

    def tokens(self) -> list[int]:
        """The token ids of the log as it is now."""
        with reaching(self._office.where):
            data: Any = self._connection.get(self._office.keys.log(self.id))
        return unpack(data or b"")

    def _do(
        self,
        request: Request,
        made: Callable[[Versioned], T],
        wait: bool,
        timeout: float | None,
        rq: Mapping[str, Any],
    ) -> T | Pending[T]:
        pending = Pending(self._connection, self._office, self._office.place(request, rq), made)
        return pending.result(timeout) if wait else pending
