"""One running step: from tokens the engine samples to text, events, a record and a result."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from tokenloom.native_ext.engine import Sampling, TokenLogprobs
from tokenloom.schemas.errors import ErrorBody
from tokenloom.schemas.events import FinishedEvent, FinishReason, Logprob, Usage
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.records import StepRecord, StepResult
from tokenloom.schemas.running import running_record, tokens_event

from .jobs.claimed import Claimed
from .session import Session


class TextStream(Protocol):
    """Turns a step's generated tokens into text as they come. ``may_stop``: it looks for stop strings in it;
    ``pending``: how many bytes of a character have come whose rest has not.
    """

    @property
    def may_stop(self) -> bool: ...

    @property
    def pending(self) -> int: ...

    def push(self, token: int) -> tuple[str, bool]:
        """Text that became certain, and whether a stop string was met."""

    def skip(self, token: int) -> str:
        """Text that became certain by a token that is no part of it."""

    def flush(self) -> str:
        """What was held back as the start of a stop string."""


class Step:
    """A step at work on its session. Its tokens are the log's ``[base, base + appended + generated)``.

    Two things are kept apart. *Computed* is what ``accept`` and ``finish`` have made of the engine's outputs:
    ``tokens``, ``length``, ``reason``. *Committed* is the session's log, and what ``committed`` was told is in Redis.
    The next forward goes on from what is computed; everybody else sees what is committed. ``record``, ``events`` and
    ``result`` say what a commit would write. Should it be refused, the step is thrown away, never corrected.

    Its text is whole characters. ``stream`` begins with the bytes of the character in whose middle the log ended, and
    those of one that the step does not finish are left to the next step. ``before``: U+FFFD if the step's append
    broke off such a character.
    """

    def __init__(
        self,
        claimed: Claimed,
        session: Session,
        generation: Generation,
        stream: TextStream,
        stop_tokens: Iterable[int],
        capacity: int,
        record: StepRecord,
        before: str = "",
    ) -> None:
        self.claimed = claimed
        self.id = claimed.id
        #: Whose share it counts against.
        self.tenant: str = getattr(claimed.request, "tenant", None) or ""
        self.session = session
        self.generation = generation
        self.stop_tokens = frozenset(stop_tokens)
        self.most = generation.max_tokens or 0
        self.sampling = sampling_of(generation, session.seed)
        self.deadline: float | None = getattr(claimed.request, "deadline", None)
        self.base, self.appended, self.began = record.base, record.appended, record.began
        self.cached = record.cached
        self.reason: FinishReason | None = None
        self.error: ErrorBody | None = None
        self.started = False
        self.tokens: list[int] = []
        self.logprobs: list[Logprob] = []
        self.parts: list[str] = []
        self.before = before
        self._stream = stream
        self._capacity = capacity
        self._published = 0
        self._unspelled: list[int] = []
        self._fresh: list[str] = []
        self._tail = ""
        self._deaths_before = record.deaths

    @property
    def generating(self) -> bool:
        """Whether it wants another token."""
        return self.reason is None and len(self.tokens) < self.most

    @property
    def suspicion(self) -> int:
        """Workers that died on this step since it last got on."""
        return self.claimed.deaths - self._deaths_before

    @property
    def length(self) -> int:
        """The log's length with all that is computed, committed or not."""
        return self.base + self.appended + len(self.tokens)

    @property
    def uncommitted(self) -> bool:
        """Whether it has computed something that Redis does not have: tokens, or its end."""
        return self.reason is not None or self._published < len(self.tokens)

    def ids(self, start: int, end: int) -> list[int]:
        """Token ids of a slice of the log with all that is computed."""
        committed = self.session.length
        if end <= committed:
            return self.session.ids(start, end)
        computed = self.new_tokens()
        assert end <= committed + len(computed)
        return self.session.ids(start, committed) + computed[max(0, start - committed) : end - committed]

    def settle(self) -> None:
        """End a step that wants tokens and has no room for another. One that wants none still has to prefill."""
        if self.reason is None and self.most and (len(self.tokens) >= self.most or self.length >= self._capacity):
            self.finish("length")

    def replay(self, tokens: Iterable[int], logprobs: Iterable[Logprob] = ()) -> None:
        """Bring the step to where a former run of it had come: these tokens are committed and published already."""
        for token in tokens:
            self._push(token)
        self.logprobs.extend(logprobs)
        self._spell()
        self._published = len(self.tokens)
        self._fresh.clear()

    def accept(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Take a sampled token; ends the step if the token, its text, or the count says so."""
        if self.generation.logprobs is not None and logprobs is not None:
            self.logprobs.append(Logprob(chosen=logprobs.chosen, top=list(logprobs.top)))
        self._push(token)
        if self.reason is None and (len(self.tokens) >= self.most or self.length >= self._capacity):
            self.finish("length")

    def finish(self, reason: FinishReason, error: ErrorBody | None = None, *, drop_tail: bool = False) -> None:
        """End the step. Held-back text comes out, unless it belongs to a stop string.

        A step that failed keeps it back: it may be tried again, and then goes on from here.
        """
        if self.reason is None:
            self._spell()
            self.reason, self.error = reason, error
            self._tail = "" if drop_tail or reason == "error" else self._stream.flush()
            self.parts.append(self._tail)

    # -- what a commit writes ----------------------------------------------------------------------------------------

    def new_tokens(self) -> list[int]:
        """Tokens accepted since the last commit."""
        return self.tokens[self._published :]

    def events(self) -> list[bytes | FinishedEvent]:
        """Events for what happened since the last commit: one of tokens, as bytes, and the last one."""
        self._spell()
        now = time.time()
        events: list[bytes | FinishedEvent] = []
        fresh = self.new_tokens()
        if fresh:
            logprobs = self.logprobs[self._published :] if self.generation.logprobs is not None else None
            text, position = "".join(self._fresh), self.length - len(fresh)
            events.append(tokens_event(self.session.id, self.id, now, position, fresh, text, logprobs))
        if self.reason is not None:
            events.append(
                FinishedEvent(
                    session=self.session.id,
                    job=self.id,
                    at=now,
                    reason=self.reason,
                    length=self.length,
                    text=self._tail,
                    pending=self._stream.pending or None,
                    usage=self.usage(),
                    error=self.error,
                )
            )
        return events

    def committed(self) -> None:
        """The last commit is in Redis."""
        self._published = len(self.tokens)
        self._fresh.clear()
        self._deaths_before = self.claimed.deaths

    def record(self) -> StepRecord | bytes:
        """The step's record, with its result once it has ended; in bytes as long as it has not."""
        if self.reason is None:
            deaths = self.claimed.deaths
            return running_record(self.base, self.appended, len(self.tokens), self.cached, self.began, deaths)
        return StepRecord(
            base=self.base,
            appended=self.appended,
            generated=len(self.tokens),
            cached=self.cached,
            reason=self.reason,
            began=self.began,
            ended=time.time(),
            result=None if self.reason == "error" else self.result(),
            error=self.error,
            deaths=self.claimed.deaths,
        )

    def result(self) -> StepResult:
        """What the job returns. Only for a step that has ended."""
        assert self.reason is not None
        return StepResult(
            session=self.session.id,
            step=self.id,
            reason=self.reason,
            tokens=self.tokens,
            text="".join(self.parts),
            before=self.before or None,
            pending=self._stream.pending or None,
            length=self.length,
            usage=self.usage(),
            logprobs=self.logprobs if self.generation.logprobs is not None else None,
        )

    def usage(self) -> Usage:
        return Usage(appended=self.appended, generated=len(self.tokens), cached=self.cached)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _push(self, token: int) -> None:
        self.tokens.append(token)
        if token in self.stop_tokens:
            self._spell()
            self._say(self._stream.skip(token))
            self.finish("stop")
            return
        self._unspelled.append(token)
        if self._stream.may_stop and self._spell():
            self.finish("stop", drop_tail=True)

    def _spell(self) -> bool:
        """Make the text of tokens that have none yet; whether a stop string was met. Without any, it can wait."""
        stopped = False
        for token in self._unspelled:
            text, stopped = self._stream.push(token)
            self._say(text)
        self._unspelled.clear()
        return stopped

    def _say(self, text: str) -> None:
        self.parts.append(text)
        self._fresh.append(text)


def sampling_of(generation: Generation, seed: int) -> Sampling:
    """The engine's settings of settled generation settings: every field but ``logprobs`` is given."""
    given = generation.model_dump(
        include={
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "penalty_window",
            "logprobs",
        }
    )
    bias = tuple(sorted((generation.logit_bias or {}).items()))
    return Sampling(**given, logit_bias=bias, seed=seed)
