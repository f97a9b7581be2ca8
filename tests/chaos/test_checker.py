"""The judge itself: it finds nothing in a sound history, and each doctored one is objected to, in words of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import begins, check
from chaos.folding import StepSum
from chaos.history import History, Reference
from chaos.spelling import check_text


def usage(appended: int, generated: int) -> dict[str, int]:
    return {"appended": appended, "generated": generated, "cached": 0}


def sound() -> tuple[History, Reference]:
    """Two sessions: one opens, steps, is cloned, is cut back and closed; the clone steps and is cancelled."""
    one, two = "s", "t"

    def event(session: str, job: str, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "session": session, "job": job, **fields}

    def finished(
        session: str, job: str, length: int, appended: int, generated: int, reason: str = "length"
    ) -> dict[str, Any]:
        return event(session, job, "finished", reason=reason, length=length, text="", usage=usage(appended, generated))

    streams: dict[str, list[dict[str, Any]]] = {
        one: [
            event(one, "open", "opened", seed=1, length=0),
            event(one, "a", "appended", position=0, tokens=[1, 2]),
            event(one, "a", "tokens", position=2, tokens=[3], text="x"),
            event(one, "a", "tokens", position=3, tokens=[4], text="y"),
            event(one, "a", "tokens", position=4, tokens=[5], text="z"),
            finished(one, "a", 5, 2, 3),
            event(one, "clone", "cloned", targets=[two], length=4),
            event(one, "rewind", "rewound", length=1),
            event(one, "b", "tokens", position=1, tokens=[6], text="u"),
            finished(one, "b", 2, 0, 1),
        ],
        two: [
            event(two, "clone", "opened", seed=2, length=4, parent=one),
            event(two, "c", "appended", position=4, tokens=[7]),
            event(two, "c", "tokens", position=5, tokens=[8], text="v"),
            finished(two, "c", 6, 1, 1, "cancelled"),
            event(two, "close", "closed"),
        ],
    }
    events = {name: [(f"{1000 + at}-0", entry) for at, entry in enumerate(stream)] for name, stream in streams.items()}
    jobs: list[dict[str, Any]] = [
        {"id": "open", "op": "open", "session": one, "seed": 1},
        {"id": "a", "op": "step", "session": one, "tokens": [1, 2]},
        {"id": "clone", "op": "clone", "session": one, "targets": [two], "upto": 4},
        {"id": "rewind", "op": "rewind", "session": one, "to": 1},
        {"id": "b", "op": "step", "session": one},
        {"id": "c", "op": "step", "session": two, "tokens": [7]},
        {"id": "close", "op": "close", "session": two},
    ]

    def result(reason: str, tokens: list[int], text: str, length: int) -> list[dict[str, Any]]:
        return [{"result": {"reason": reason, "tokens": tokens, "text": text, "length": length}}]

    history = History(
        jobs=jobs,
        events=events,
        kept={name: [id for id, _ in entries] for name, entries in events.items()},
        answers={
            "a": result("length", [3, 4, 5], "xyz", 5),
            "b": result("length", [6], "u", 2),
            "c": result("cancelled", [8], "v", 6),
            **{id: [{"result": {}}] for id in ("open", "clone", "rewind", "close")},
        },
        seen={"a": [f"{at}-0" for at in range(1001, 1006)]},
        cancels={"c"},
        endings={job["id"]: {"status": "finished", "results": 1} for job in jobs},
        logs={one: [1, 6]},
    )
    steps = {
        "a": {"tokens": [3, 4, 5], "text": "xyz", "reason": "length", "error": None},
        "b": {"tokens": [6], "text": "u", "reason": "length", "error": None},
        "c": {"tokens": [8, 9, 9], "text": "vww", "reason": "length", "error": None},
    }
    return history, Reference(steps, {}, {one: [1, 6]})


Doctor = Callable[[History], object]


def test_a_sound_history_is_not_objected_to() -> None:
    verdict = check(*sound())
    assert verdict.violations == []
    assert verdict.figures["tokens"] == 5
    assert verdict.figures["steps cancelled"] == 1


def spelled(**changed: bytes) -> Callable[[int], bytes]:
    """Tokens of the sound history as what it says; ``t5=b"..."`` spells token 5 otherwise."""
    bytes_of = {3: b"x", 4: b"y", 5: b"z", 6: b"u", 8: b"v"} | {int(name[1:]): data for name, data in changed.items()}
    return lambda token: bytes_of.get(token, b"")


def test_texts_are_compared_with_the_bytes_of_tokens() -> None:
    assert check(*sound(), spelled()).violations == []

    def objections(doctor: Doctor, **changed: bytes) -> list[str]:
        history, reference = sound()
        doctor(history)
        return check(history, reference, spelled(**changed)).violations

    (text, pending) = objections(lambda h: None, t5=b"\xc3")
    assert text == "step a of s: its text 'xyz' is not its tokens' 'xy'"
    assert pending == "step a of s: it says that 0 bytes are pending; its tokens leave b'\\xc3'"
    assert objections(lambda h: put(h, "s", 5, pending=1)) == [
        "step a of s: the result says None, None of cut characters",
        "step a of s: it says that 1 bytes are pending; its tokens leave b''",
    ]
    # the clone takes over x and y and appends to them: here y is the first byte of a character
    said = objections(lambda h: None, t4=b"\xc3", t5=b"\xa9")
    assert said == [
        "step a of s: its text 'xyz' is not its tokens' 'xé'",
        "step c of t: before what it appended stands ''; expected was '\ufffd'",
    ]


def test_a_step_that_appends_nothing_goes_on_with_the_character_before_it() -> None:
    step = StepSum("s", [1], tokens=[2, 3], text="éa", reason="length")
    spell = {1: b"\xc3", 2: b"\xa9", 3: b"a"}.__getitem__
    job: dict[str, Any] = {"id": "j", "session": "s"}
    assert list(check_text(job, step, spell)) == []
    step.text = "\ufffda"
    assert list(check_text(job, step, spell)) == ["step j of s: its text '\ufffda' is not its tokens' 'éa'"]
    stopped = StepSum("s", [1], tokens=[2, 3], text="é", reason="stop")
    assert list(check_text({**job, "generation": {"stop": ["a"]}}, stopped, spell)) == []
    assert list(check_text(job, stopped, spell)) == ["step j of s: its text 'é' is not its tokens' 'éa'"]


def test_a_history_survives_being_written_down(tmp_path: Path) -> None:
    history, reference = sound()
    history.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json") == history
    assert check(History.load(tmp_path / "history.json"), reference).violations == []


def swap(entries: list[tuple[str, dict[str, Any]]], at: int) -> None:
    """Two neighbours change places, their ids stay where they were."""
    (first, one), (second, other) = entries[at], entries[at + 1]
    entries[at], entries[at + 1] = (first, other), (second, one)


def put(history: History, stream: str, at: int, /, **fields: Any) -> object:
    """Change an event."""
    return history.events[stream][at][1].update(fields)


CASES: dict[str, tuple[Doctor, str]] = {
    "a dropped event": (lambda h: h.events["s"].pop(3), "leaves a gap: it begins at 4, and the log has 3"),
    "a doubled event": (
        lambda h: h.events["s"].insert(4, ("1003-1", copy.deepcopy(h.events["s"][3][1]))),
        "tokens event of job a comes twice (position 3)",
    ),
    "an event delivered again under its id": (
        lambda h: h.events["s"].insert(4, h.events["s"][3]),
        "has the id 1003-0, which does not follow the one before",
    ),
    "a swapped pair": (lambda h: swap(h.events["s"], 3), "overlaps: it begins at 3, and the log has 4"),
    "tokens generated again at the next positions": (
        lambda h: h.events["s"].insert(5, ("1004-1", {**h.events["s"][4][1], "position": 5})),
        "says 5 tokens; the events add up to 6",
    ),
    "a wrong token": (lambda h: put(h, "s", 3, tokens=[40]), "step a of s: the result's tokens (length 3 against 3)"),
    "a wrong token everywhere": (
        lambda h: (put(h, "s", 3, tokens=[40]), h.answers["a"][0]["result"].update(tokens=[3, 40, 5])),
        "step a of s: its tokens (length 3 against 3) differ from index 1 ([40, 5]) from the undisturbed run's",
    ),
    "a wrong token in a step cut short": (
        lambda h: (put(h, "t", 2, tokens=[80]), h.answers["c"][0]["result"].update(tokens=[80])),
        "step c of t (cut short): its tokens",
    ),
    "a wrong text": (lambda h: put(h, "s", 3, text="Y"), "the result's text 'xyz' is not the events' 'xYz'"),
    "wrong appended tokens": (lambda h: put(h, "s", 1, tokens=[1, 9]), "step a of s appended [1, 9] instead of [1, 2]"),
    "an append done twice": (
        lambda h: h.events["s"].insert(2, ("1001-1", {**h.events["s"][1][1], "position": 2})),
        "appended event of job a is the second of its step",
    ),
    "a step finished twice": (
        lambda h: h.events["s"].insert(6, ("1005-1", {**h.events["s"][5][1], "at": 1})),
        "step a of s finished 2 times",
    ),
    "a step never finished": (lambda h: h.events["s"].pop(9), "step b of s never finished"),
    "a step without a trace": (
        lambda h: h.events["t"].__delitem__(slice(1, 4)),
        "step c of t never finished",
    ),
    "tokens after the end": (
        lambda h: swap(h.events["s"], 4),
        "tokens event of job a comes after the step had finished",
    ),
    "a length that is not the sum": (lambda h: put(h, "s", 5, length=6), "says 6 tokens; the events add up to 5"),
    "two steps at once": (
        lambda h: h.events["s"].insert(4, h.events["s"].pop(8)),
        "tokens event of job b comes in the middle of step a",
    ),
    "a log that differs": (lambda h: h.logs.update(s=[1, 7]), "session s: the log (length 2 against 2) differ from"),
    "a log with more than its events": (
        lambda h: h.logs.update(s=[1, 6, 6]),
        "session s: the log (length 3 against 2) differ from index 2 ([6]) from the sum of its events",
    ),
    "a session that should be closed": (
        lambda h: h.logs.update(t=[1, 2, 3, 4, 7, 8]),
        "session t is open, and in the undisturbed run it is not",
    ),
    "jobs out of order": (
        lambda h: h.jobs.insert(1, h.jobs.pop(3)),
        "session s: step a ended before rewind rewind",
    ),
    "a job nobody enqueued": (lambda h: h.jobs.pop(3), "events of job rewind, which nobody enqueued"),
    "a clone its source was never told of": (
        lambda h: h.events["s"].pop(6),
        "opened event of job clone is a clone that its source was never told of",
    ),
    "a clone that does not exist": (
        lambda h: h.events["t"].__delitem__(slice(None)),
        "clone clone of s was done 0 times in t",
    ),
    "a rewind done twice": (
        lambda h: h.events["s"].insert(8, ("1007-1", {**h.events["s"][7][1]})),
        "rewind rewind of s was done 2 times in s",
    ),
    "a job refused without reason": (
        lambda h: h.events["s"].__setitem__(
            7, ("1007-0", {"type": "error", "session": "s", "job": "rewind", "error": {"code": "poison"}})
        ),
        "rewind rewind of s ended with error poison; expected was None",
    ),
    "a step cancelled by nobody": (lambda h: h.cancels.clear(), "ended as cancelled, and nobody asked for that"),
    "a timeout without a deadline": (
        lambda h: put(h, "t", 3, reason="timeout"),
        "step c of t ended as timeout, and it had no deadline",
    ),
    "a producer never told": (lambda h: h.answers.pop("b"), "step b of s: the producer was never told how it ended"),
    "a producer told of an error": (
        lambda h: h.answers.update(b=[{"error": "poison"}]),
        "step b of s: the producer was told of error poison; expected was None",
    ),
    "a result of another length": (
        lambda h: h.answers["b"][0]["result"].update(length=3),
        "step b of s: the result says length at 3",
    ),
    "RQ never told": (
        lambda h: h.endings["b"].update(status="started"),
        "step b of s: RQ says started; expected was finished",
    ),
    "RQ told twice": (lambda h: h.endings["b"].update(results=2), "RQ stores 2 results instead of one"),
    "a job RQ forgot": (lambda h: h.endings.pop("rewind"), "rewind rewind of s: RQ has no record of it"),
    "an event a subscriber missed": (
        lambda h: h.kept["s"].append("1100-0"),
        "session s: a subscriber read 10 events, the stream has 11: ['1100-0']",
    ),
    "an event that a step's follower missed": (
        lambda h: h.seen["a"].pop(1),
        "step a: its follower was given 4 events",
    ),
    "an event given to a step's follower twice": (
        lambda h: h.seen["a"].insert(1, "1001-0"),
        "step a: its follower was given 6 events",
    ),
    "events made up for a follower": (lambda h: h.late.add("a"), "was given events without ids"),
    "an event in another session's stream": (
        lambda h: put(h, "s", 3, session="t"),
        "session s: tokens event of job a belongs to session t",
    ),
    "tokens after closing": (
        lambda h: h.events["t"].insert(3, h.events["t"].pop()),
        "closed event of job close comes in the middle of step c",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_doctored_history_is_objected_to(case: str) -> None:
    history, reference = sound()
    doctor, words = CASES[case]
    doctor(history)
    violations = check(history, reference).violations
    assert any(words in violation for violation in violations), "\n".join(violations) or "no objection"


def test_a_step_that_no_longer_fits_is_refused_in_both_runs_or_objected_to() -> None:
    def refused(history: History) -> None:
        put(history, "s", 9, reason="error", length=1, usage=usage(0, 0), error={"code": "context_full"})
        history.events["s"].pop(8)
        history.answers["b"] = [{"error": "context_full"}]
        history.endings["b"]["status"] = "failed"
        history.logs["s"] = [1]

    history, reference = sound()
    refused(history)
    assert any("step b of s ended with error context_full" in one for one in check(history, reference).violations)
    history, reference = sound()
    refused(history)
    reference.steps["b"] = {"tokens": [], "text": "", "reason": "error", "error": "context_full"}
    reference.logs["s"] = [1]
    history.kept.clear()
    assert check(history, reference).violations == []


def test_text_of_a_step_cut_short_may_end_in_what_was_held_back() -> None:
    assert begins("vw", "vww", ())
    assert not begins("v\ufffd", "vww", ()), "half a character is no text"
    assert not begins("vx", "vww", ())
    assert begins("vt", "v", ["the"])
    assert begins("vth", "v", ["the"])
    assert not begins("vthe", "v", ["the"]), "a whole stop string is never text"
    assert not begins("vt", "vww", ["the"])


def test_each_objection_is_of_its_own() -> None:
    assert len({words for _, words in CASES.values()}) >= len(CASES) - 1
