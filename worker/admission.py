"""A step before its first forward: checked, its input turned into tokens, or taken up where a former run left it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tokenloom.native_ext.engine import Geometry
from tokenloom.schemas.errors import TokenloomError
from tokenloom.schemas.events import AppendedEvent, Logprob
from tokenloom.schemas.generation import BUILT_IN, Generation
from tokenloom.schemas.log import pack
from tokenloom.schemas.records import StepRecord
from tokenloom.schemas.requests import StepRequest

from .operations import must_be_open
from .residency import Residency
from .session import Session
from .step import Step
from .store import Store, Write
from .text import REPLACEMENT
from .texts import Texts
from .waiting import Waiting


@dataclass(frozen=True, slots=True)
class Admission:
    """Begins steps for one worker."""

    geometry: Geometry
    texts: Texts
    store: Store
    residency: Residency

    @property
    def capacity(self) -> int:
        """The longest log served here, in tokens: the model's context, or what the byte budget holds of it."""
        return min(self.geometry.context, self.geometry.max_pages * self.geometry.page_size)

    def begin(self, waiting: Waiting, session: Session) -> tuple[Step, Write | None]:
        """The step, and the write that begins it; None when it began before and only goes on.

        Raises TokenloomError to refuse it.
        """
        request = waiting.claimed.request
        assert isinstance(request, StepRequest)
        must_be_open(session, self.geometry.fingerprint)
        generation = request.generation.over(session.defaults).over(BUILT_IN)
        self._check_ids(generation)
        former = waiting.record
        if isinstance(former, StepRecord) and self._goes_on(waiting.id, former, session):
            return self._resume(waiting, session, generation, former), None
        tokens = self._input(request, session)
        self._check_room(session, len(tokens), generation)
        record = StepRecord(base=session.length, appended=len(tokens), began=time.time(), deaths=waiting.claimed.deaths)
        step = self._step(waiting, session, generation, record)
        write = Write(session, step.id, record, begin=True, append=pack(tokens, generated=False))
        write.fields = {"used": record.began}
        if self.store.settings.idle_ttl:
            write.ttl = 0  # in use: nothing expires under a running step
        if tokens:
            at, position, before = record.began, session.length, step.before or None
            write.events = [
                AppendedEvent(session=session.id, job=step.id, at=at, position=position, tokens=tokens, before=before)
            ]
        return step, write

    def _goes_on(self, job: str, record: StepRecord, session: Session) -> bool:
        """Whether the log is as the former run left it; else other jobs came between and the step starts anew."""
        return session.writer == job and record.base + record.appended + record.generated == session.length

    def _resume(self, waiting: Waiting, session: Session, generation: Generation, record: StepRecord) -> Step:
        step = self._step(waiting, session, generation, record)
        start = record.base + record.appended
        logprobs: list[Logprob] = []
        if generation.logprobs is not None and record.generated:
            for event in self.store.step_events(session.id, step.id):
                logprobs += [Logprob.model_validate(item) for item in event.get("logprobs") or ()]
        step.replay(session.ids(start, start + record.generated), logprobs)
        return step

    def _step(self, waiting: Waiting, session: Session, generation: Generation, record: StepRecord) -> Step:
        stops = set(generation.stop_tokens or ())
        if not generation.ignore_eos:
            stops |= self.texts.stop_tokens
        held = self.texts.held(session.log, record.base)
        stream = self.texts.stream(generation.stop or (), b"" if record.appended else held)
        before = REPLACEMENT if held and record.appended else ""
        return Step(waiting.claimed, session, generation, stream, stops, self.capacity, record, before)

    def _input(self, request: StepRequest, session: Session) -> list[int]:
        if request.tokens is not None:
            if len(request.tokens) <= self.capacity:  # else it is refused for its length
                self._check_tokens("tokens", request.tokens)
            tokens = request.tokens
        elif request.text is not None:
            self._check_text("text", len(request.text), session)
            tokens = self.texts.encode(request.text, session.ids(-1) if session.length else [])
        elif request.messages is not None:
            self._check_text("messages", sum(len(message.content) for message in request.messages), session)
            tokens = self.texts.encode_chat([m.model_dump() for m in request.messages], session.ids())
        else:
            tokens = []
        if request.at_length is not None and request.at_length != session.length:
            raise TokenloomError.of(
                "length_mismatch",
                f"at_length: session {session.id!r} has {session.length} tokens, not {request.at_length}",
                field="at_length",
                value=request.at_length,
                limit=session.length,
            )
        return tokens

    def _check_text(self, field: str, characters: int, session: Session) -> None:
        """Refuse what cannot fit before it is tokenized: megabytes of text would keep all others waiting."""
        least = -(-characters // max(1, self.texts.longest))
        if session.length + least > self.geometry.context:
            raise TokenloomError.of(
                "context_full",
                f"{field}: {characters} characters are at least {least} tokens; the model's context is"
                f" {self.geometry.context}, and session {session.id!r} has {session.length}",
                field=field,
                value=characters,
                limit=self.geometry.context - session.length,
            )

    def _check_room(self, session: Session, appended: int, generation: Generation) -> None:
        length = session.length + appended
        if length == 0 and generation.max_tokens:
            raise TokenloomError.of(
                "invalid",
                f"session {session.id!r} is empty and the step appends nothing: there is nothing to generate from",
                field="text",
            )
        if length <= self.capacity:
            return
        if length > self.geometry.context:
            raise TokenloomError.of(
                "context_full",
                f"{session.length} tokens in session {session.id!r} and {appended} appended are {length}; the model's"
                f" context is {self.geometry.context}",
                field="tokens",
                value=length,
                limit=self.geometry.context,
            )
        pages = -(-length // self.geometry.page_size)
        raise TokenloomError.of(
            "cells_exhausted",
            f"{length} tokens need {pages} pages of cells ({pages * self.geometry.page_bytes} bytes); the worker's"
            f" budget holds {self.geometry.max_pages}: raise TOKENLOOM_KV_BYTES",
            field="tokens",
            value=length,
            limit=self.capacity,
        )

    def _check_ids(self, generation: Generation) -> None:
        self._check_tokens("generation.stop_tokens", generation.stop_tokens or ())
        self._check_tokens("generation.logit_bias", generation.logit_bias or ())

    def _check_tokens(self, field: str, tokens: Iterable[int]) -> None:
        vocabulary = self.geometry.vocabulary
        for token in tokens:
            if token >= vocabulary:
                raise TokenloomError.of(
                    "invalid",
                    f"{field}: token {token} is outside the model's vocabulary of {vocabulary}",
                    field=field,
                    value=token,
                    limit=f"0 to {vocabulary - 1}",
                )
