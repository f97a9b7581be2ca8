"""Steps that begin and end in the middle of characters: their texts, whatever came between them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from reciting import Reciting
from rig import Rig

from characters import cut
from tokenloom.native_ext.fake import FakeEngine
from tokenloom.schemas.generation import Generation
from tokenloom.schemas.log import GENERATED, ID_MASK, words
from tokenloom.schemas.records import StepResult
from tokenloom.schemas.requests import CloneRequest, OpenRequest, RewindRequest, StepRequest
from vocabularies import Vocabulary, vocabulary

#: Three scripts, an emoji of three code points, and an end to tell by.
TEXT = "né世界\U0001f469\u200d\U0001f4bb नमz"

MakeRig = Callable[..., Rig]


@pytest.fixture(scope="module", params=["byte_level", "score", "three_bytes"])
def voice(request: pytest.FixtureRequest, model_path: Path) -> Vocabulary:
    return vocabulary(request.param, model_path)


class Stage:
    """Workers that all say TEXT from behind the first token of a log, over one server."""

    def __init__(self, make_rig: MakeRig, engine: Callable[[], FakeEngine], voice: Vocabulary) -> None:
        self._make_rig = make_rig
        self._engine = engine
        self.voice = voice
        self.tokens = voice.tokens(TEXT)
        self.mark = voice.byte(0x23)
        self.rig = self.another("W")

    def another(self, name: str) -> Rig:
        """One more worker, which knows nothing but what Redis has."""
        engine = Reciting(self._engine(), self.voice.metadata, [self.mark, *self.tokens])
        return self._make_rig(engine, worker=name, max_active=512)

    @property
    def cuts(self) -> range:
        return range(len(self.tokens) + 1)

    def each(self, make: Callable[[str, int], Any]) -> list[Any]:
        """Results of one job for each cut, in sessions s0, s1, ... all at once."""
        results: list[Any] = self.rig.run(*(make(f"s{at}", at) for at in self.cuts))
        return results

    def begin_each(self) -> None:
        """The sessions that ``each`` is about."""
        self.begin(*(f"s{at}" for at in self.cuts))

    def rest(self, at: int) -> int:
        """How many tokens come behind a cut."""
        return len(self.tokens) - at

    @property
    def held(self) -> int:
        """The first cut in the middle of a character."""
        return next(at for at in self.cuts if self.said(self.tokens[:at])[1])

    def begin(self, *sessions: str) -> None:
        """Open sessions that hold the mark alone."""
        self.rig.run(*(OpenRequest(session=name) for name in sessions))
        self.rig.run(*(step(name, [self.mark], 0) for name in sessions))

    def said(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Text of generated tokens, and how many bytes of a character they end in."""
        text, held = cut(self.voice.spelled(tokens))
        return text, len(held)


@pytest.fixture
def stage(make_rig: MakeRig, fake: Callable[..., FakeEngine], voice: Vocabulary) -> Stage:
    return Stage(make_rig, lambda: fake(pages=2048, max_sequences=512), voice)


def step(session: str, tokens: list[int] | None, count: int, **fields: Any) -> StepRequest:
    return StepRequest(session=session, tokens=tokens, generation=Generation(max_tokens=count, **fields))


def text_of(result: Any) -> tuple[str, int]:
    assert isinstance(result, StepResult), result
    return result.text, result.pending or 0


def read(rig: Rig, session: str) -> str:
    """What a reader puts together of the session's events: all text, appended tokens as ``<>``."""
    text = ""
    for event in rig.events(session):
        if event.type == "appended":
            text += (event.before or "") + "<>"
        elif event.type in ("tokens", "finished"):
            text += event.text
    return text


# -- nothing between --------------------------------------------------------------------------------------------------


def test_two_steps_cut_at_any_token_say_the_whole_text(stage: Stage) -> None:
    stage.begin_each()
    firsts = stage.each(lambda name, at: step(name, None, at))
    seconds = stage.each(lambda name, at: step(name, None, stage.rest(at)))
    for at, first, second in zip(stage.cuts, firsts, seconds, strict=True):
        begun, pending = stage.said(stage.tokens[:at])
        assert text_of(first) == (begun, pending)
        assert text_of(second) == (TEXT[len(begun) :], 0)
        assert first.tokens + second.tokens == stage.tokens
        assert read(stage.rig, f"s{at}") == "<>" + TEXT
        finished = [event for event in stage.rig.events(f"s{at}") if event.type == "finished"]
        assert [event.pending or 0 for event in finished] == [0, pending, 0]


def test_one_token_a_step_says_the_whole_text(stage: Stage) -> None:
    stage.begin("s")
    results = stage.rig.run(*(step("s", None, 1) for _ in stage.tokens))
    assert "".join(result.text for result in results) == TEXT
    assert read(stage.rig, "s") == "<>" + TEXT
    assert any(result.pending for result in results)


def test_steps_that_do_nothing_break_no_character(stage: Stage) -> None:
    """No tokens wanted; nothing in what is appended; over before it began."""
    stage.begin("s")
    for token in stage.tokens:
        before = text_of(stage.rig.run(step("s", None, 1))[0])[1]
        late = StepRequest(session="s", tokens=[stage.mark], deadline=1.0)
        results = stage.rig.run(step("s", None, 0), step("s", [], 0), late)
        assert [text_of(result) for result in results] == [("", before)] * 3, token
        assert [event.pending or 0 for event in stage.rig.events("s")[-3:]] == [before] * 3
    assert read(stage.rig, "s") == "<>" + TEXT


def test_a_step_cancelled_in_the_middle_of_a_character_is_gone_on_from(stage: Stage) -> None:
    for at in range(1, len(stage.tokens)):
        name = f"s{at}"
        stage.begin(name)
        (job,) = stage.rig.take(step(name, None, len(stage.tokens)))
        while len(stage.rig.log(name)) < 1 + at:
            stage.rig.cycle.turn()
        stage.rig.cycle.interrupt(job, "cancelled")
        stage.rig.turn()
        first = [event for event in stage.rig.events(name) if event.type == "finished"][-1]
        assert first.reason == "cancelled"
        assert (first.pending or 0) == stage.said(stage.tokens[: first.length - 1])[1]
        stage.rig.run(step(name, None, stage.rest(first.length - 1)))
        assert read(stage.rig, name) == "<>" + TEXT


# -- something appended between ---------------------------------------------------------------------------------------


def test_what_an_append_breaks_off_is_one_replacement_in_front_of_it(stage: Stage) -> None:
    stage.begin_each()
    firsts = stage.each(lambda name, at: step(name, None, at))
    appends = stage.each(lambda name, at: step(name, [stage.mark, stage.mark], 0))
    seconds = stage.each(lambda name, at: step(name, None, 6))
    assert sum(first.pending is not None for first in firsts) >= 4
    for at, first, append, second in zip(stage.cuts, firsts, appends, seconds, strict=True):
        name = f"s{at}"
        assert text_of(append) == ("", 0)
        assert append.before == ("\ufffd" if first.pending else None)
        assert second.before is None
        assert text_of(second) == stage.said(second.tokens)
        whole = (first.text + (append.before or "") + "##" + second.text) + "\ufffd" * bool(second.pending)
        assert "#" + whole == stage.voice.tokenizer.decode(stage.rig.log(name))
        assert read(stage.rig, name) == "<>" + first.text + (append.before or "") + "<>" + second.text


def test_an_append_and_tokens_in_one_step(stage: Stage) -> None:
    """The rest of the character is generated behind the append, and is no character there."""
    stage.begin("s")
    held = stage.held
    (first,) = stage.rig.run(step("s", None, held))
    (second,) = stage.rig.run(step("s", [stage.mark], 8))
    assert (first.pending or 0, second.before) == (stage.said(stage.tokens[:held])[1], "\ufffd")
    assert text_of(second) == stage.said(second.tokens)
    assert read(stage.rig, "s") == f"<>{first.text}\ufffd<>{second.text}"


def test_messages_close_a_turn_that_was_cut_in_a_character_and_the_next_reply_is_clean(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.run(OpenRequest(session="s"))
    messages = [{"role": "user", "content": "Hi"}]

    def say(count: int, byte: int) -> Any:
        only = Generation(max_tokens=count, temperature=0.0, logit_bias={byte: 99.0})
        (result,) = rig.run(StepRequest.model_validate({"session": "s", "messages": messages, "generation": only}))
        return result

    first, second = say(2, 0xF0), say(3, ord("x"))
    assert (first.text, first.pending) == ("\ufffd", 1), "the first byte is none's beginning once another follows"
    assert (second.before, second.text, second.pending) == ("\ufffd", "xxx", None)


# -- rewind, clone, another worker ------------------------------------------------------------------------------------


def test_a_rewind_to_any_token_is_gone_on_from_with_whole_characters(stage: Stage) -> None:
    stage.begin("s")
    stage.rig.run(step("s", None, len(stage.tokens)))
    for at in reversed(stage.cuts):
        _, result = stage.rig.run(RewindRequest(session="s", to=1 + at), step("s", None, stage.rest(at)))
        begun, _ = stage.said(stage.tokens[:at])
        assert text_of(result) == (TEXT[len(begun) :], 0)


def test_a_rewind_takes_back_what_an_append_broke_off(stage: Stage) -> None:
    held = stage.held
    stage.begin("s")
    (first,) = stage.rig.run(step("s", None, held))
    (append,) = stage.rig.run(step("s", [stage.mark] * 3, 2))
    assert append.before == "\ufffd"
    _, into, again = stage.rig.run(
        RewindRequest(session="s", to=1 + held + 1), step("s", None, 0), step("s", [stage.mark], 0)
    )
    assert (into.pending, into.before, again.before) == (None, None, None), "the append that broke it off still stands"
    _, rest = stage.rig.run(RewindRequest(session="s", to=1 + held), step("s", None, stage.rest(held)))
    assert first.text + rest.text == TEXT


def test_clones_of_any_length_go_on_with_whole_characters(stage: Stage) -> None:
    stage.begin("all")
    stage.rig.run(step("all", None, len(stage.tokens)))
    stage.each(lambda name, at: CloneRequest(session="all", targets=[name], upto=1 + at))
    results = stage.each(lambda name, at: step(name, None, stage.rest(at)))
    for at, result in zip(stage.cuts, results, strict=True):
        begun, _ = stage.said(stage.tokens[:at])
        assert text_of(result) == (TEXT[len(begun) :], 0)


def test_another_worker_goes_on_from_any_token_between_two_steps(stage: Stage) -> None:
    stage.begin_each()
    firsts = stage.each(lambda name, at: step(name, None, at))
    stage.rig = stage.another("V")
    seconds = stage.each(lambda name, at: step(name, None, stage.rest(at)))
    for at, first, second in zip(stage.cuts, firsts, seconds, strict=True):
        assert first.text + second.text == TEXT
        assert read(stage.rig, f"s{at}") == "<>" + TEXT


@pytest.mark.parametrize("append", [None, 0x23])
def test_a_worker_that_dies_at_any_token_of_a_step_is_not_heard(stage: Stage, append: int | None) -> None:
    """The step begins in the middle of a character, and is taken up wherever it was."""
    held, rest = stage.held, stage.rest(stage.held)
    appended = None if append is None else [stage.voice.byte(append)]
    stage.begin("calm")
    stage.rig.run(step("calm", None, held))
    (calm,) = stage.rig.run(step("calm", appended, rest))
    for turns in range(rest + 2):
        name = f"s{turns}"
        first = stage.another(f"A{turns}")
        first.run(OpenRequest(session=name), step(name, [stage.mark], held))
        request = step(name, appended, rest)
        first.take(first.claim(request, f"j{turns}"))
        for _ in range(turns):
            first.cycle.turn()
        second = stage.another(f"B{turns}")
        (result,) = second.run(second.claim(request, f"j{turns}", deaths=1))
        assert (result.text, result.before, result.pending) == (calm.text, calm.before, calm.pending), turns
        assert read(second, name) == read(stage.rig, "calm")


# -- what ends a step -------------------------------------------------------------------------------------------------


def test_a_stop_string_is_looked_for_from_the_character_that_a_step_finishes(stage: Stage) -> None:
    """A stop string whose first character the cut halves is the second step's as a whole."""
    stop = "\U0001f469\u200d"
    start, end, last = TEXT.index(stop), TEXT.index(stop) + len(stop), TEXT.index("z")
    stage.begin_each()
    firsts = stage.each(lambda name, at: step(name, None, at, stop=[stop]))
    seconds = stage.each(lambda name, at: step(name, None, 99, stop=[stop, "z"]))
    halved = 0
    for at, first, second in zip(stage.cuts, firsts, seconds, strict=True):
        begun, pending = stage.said(stage.tokens[:at])
        if len(begun) >= end:
            behind = stage.said(first.tokens)[0][end:]  # what its last token says besides is nobody's
            expected = (TEXT[:start], "stop", TEXT[end + len(behind) : last])
        elif len(begun) > start:
            expected = (begun, "length", TEXT[len(begun) : last])
        else:
            expected = (begun, "length", TEXT[len(begun) : start])
            halved += len(begun) == start and pending > 0
        assert (first.text, first.reason, second.text) == expected
        assert (first.pending or 0) == stage.said(first.tokens)[1]
        assert read(stage.rig, f"s{at}") == "<>" + first.text + second.text
    assert halved


@pytest.mark.parametrize(
    ("script", "first", "others"),
    [
        (b"\xc3|\xa9a", ("", 1), ("éa", 0)),  # | is the model's own end, which is no byte
        (b"\xc3\xa9b\xc3\xa9", ("é", 0), ("é", 0)),
        (b"\xc3bxy", ("\ufffd", 0), ("xy", 0)),
        (b"\xc3bx\xe4", ("\ufffd", 0), ("x", 1)),
    ],
)
def test_a_stop_token_is_no_text_and_breaks_off_a_character_if_it_is_bytes(
    stage: Stage, script: bytes, first: tuple[str, int], others: tuple[str, int]
) -> None:
    voice = stage.voice
    end = min(voice.tokenizer.stop_tokens)
    stage.rig.engine.script[1:] = [end if byte == ord("|") else voice.byte(byte) for byte in script]
    stage.begin("s")
    (stopped,) = stage.rig.run(step("s", None, 9, stop_tokens=[voice.byte(ord("b"))]))
    assert (stopped.reason, *text_of(stopped)) == ("stop", *first)
    results = stage.rig.run(*(step("s", None, 1) for _ in range(len(script) - len(stopped.tokens))))
    assert ("".join(result.text for result in results), results[-1].pending or 0) == others


def test_a_failed_step_that_is_tried_again_says_nothing_twice(stage: Stage) -> None:
    """What might have become a stop string when it failed comes once, and so does half a character."""
    for at in range(1, len(stage.tokens)):
        name = f"s{at}"
        rig = stage.another(name)
        rig.run(OpenRequest(session=name))
        request = step(name, [stage.mark], len(stage.tokens), stop=[char + "!" for char in TEXT])
        rig.engine.breaks_at = 1 + at
        (failed,) = rig.run(rig.claim(request, f"j{at}"))
        assert failed.code == "engine"
        rig.engine.breaks_at = None
        rig.outcomes.errors.clear()
        (result,) = rig.run(rig.claim(request, f"j{at}"))
        assert result.text == TEXT
        assert read(rig, name) == "<>" + TEXT


def test_the_log_alone_says_where_a_character_was_begun(stage: Stage) -> None:
    """The bytes are those of generated words at its end; flags decide, whoever wrote them."""
    stage.begin("s")
    held = stage.held
    stage.rig.run(step("s", None, held))
    log = words(stage.rig.redis.get(stage.rig.keys.log("s")))
    assert log[-1] == stage.tokens[held - 1] | GENERATED
    assert len(stage.voice.texts.held(log, len(log))) == stage.said(stage.tokens[:held])[1]
    plain = array("I", [word & ID_MASK for word in log])
    assert stage.voice.texts.held(plain, len(plain)) == b""
