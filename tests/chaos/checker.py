"""The judge: reads what a run left (history.py), knows nothing of how the worker works, and says what is wrong with it.

The functions are pure. Each violation is one sentence that names the session, the job and what was expected. An empty
list means: positions contiguous, nothing twice, no gap, every step finished exactly once with the tokens of an
undisturbed run, in the order in which it was enqueued, and the log equal to the sum of its events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.folding import Folded, StepSum, fold
from chaos.history import History, Job, Reference
from chaos.spelling import Spell, check_text

#: What may end a step before its time, and what must have been asked for it.
CUT_SHORT = ("cancelled", "timeout")
#: What a step may be refused for that its producer could not foresee, if the undisturbed run refuses it for the same.
OF_THE_LOG = ("context_full",)


@dataclass
class Verdict:
    """What is wrong, and how much was looked at."""

    violations: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)


def check(history: History, reference: Reference, spell: Spell | None = None) -> Verdict:
    """Everything that can be said of a run once all its jobs should have ended; of texts, if tokens can be spelled."""
    jobs = {job["id"]: job for job in history.jobs}
    folded = fold(history)
    violations = [*folded.violations]
    violations += check_order(history, folded)
    for job in history.jobs:
        if job["op"] == "step":
            violations += check_step(job, history, folded, reference)
            if spell is not None and job["id"] in folded.steps:
                violations += check_text(job, folded.steps[job["id"]], spell)
        else:
            violations += check_other(job, history, folded, reference)
        violations += check_ending(job, history, reference)
    violations += check_logs(history, folded, reference)
    violations += check_subscribers(history, folded)
    figures = Counter(f"{job['op']} jobs" for job in jobs.values())
    figures["events"] = sum(len(entries) for entries in history.events.values())
    figures["tokens"] = sum(len(step.tokens) for step in folded.steps.values())
    figures["sessions"] = len(history.events)
    for step in folded.steps.values():
        figures[f"steps {step.reason}"] += 1
        figures["steps that end in a character"] += step.pending > 0
        figures["characters broken off"] += bool(step.before)
    return Verdict(violations, figures)


def check_step(job: Job, history: History, folded: Folded, reference: Reference) -> Iterable[str]:
    """One step's events, result and tokens."""
    id, session = job["id"], job["session"]
    step = folded.steps.get(id)
    if step is None or step.finished == 0:
        yield f"step {id} of {session} never finished"
        return
    if step.finished > 1:
        yield f"step {id} of {session} finished {step.finished} times"
    where = f"step {id} of {session}"
    if step.reason == "cancelled" and id not in history.cancels:
        yield f"{where} ended as cancelled, and nobody asked for that"
    if step.reason == "timeout" and not job.get("deadline"):
        yield f"{where} ended as timeout, and it had no deadline"
    expected = expected_error(job, reference)
    if step.error != expected:
        yield f"{where} ended with error {step.error} ({step.message}); expected was {expected}"
    begun = step.appended is not None or bool(step.tokens)
    if job.get("tokens") and step.reason not in (*CUT_SHORT, "error") and not begun:
        yield f"{where} finished as {step.reason} without a trace of its tokens"
    if job.get("tokens") and step.appended is not None and step.appended != job["tokens"]:
        yield f"{where} appended {_short(step.appended)} instead of {_short(job['tokens'])}"
    for answer in history.answers.get(id, []):
        result = answer.get("result")
        if result is None:
            if answer["error"] != expected:
                yield f"{where}: the producer was told of error {answer['error']}; expected was {expected}"
        elif result["tokens"] != step.tokens:
            yield f"{where}: the result's tokens {_differ(result['tokens'], step.tokens)} the events'"
        elif result["text"] != step.text:
            yield f"{where}: the result's text {result['text']!r} is not the events' {step.text!r}"
        elif (result["reason"], result["length"]) != (step.reason, step.length):
            yield f"{where}: the result says {result['reason']} at {result['length']}, the event {step.reason}"
        elif (result.get("before") or "", result.get("pending") or 0) != (step.before, step.pending):
            yield f"{where}: the result says {result.get('before')}, {result.get('pending')} of cut characters"
        elif result.get("logprobs") is not None and len(result["logprobs"]) != len(step.tokens):
            yield f"{where}: {len(result['logprobs'])} log-probabilities for {len(step.tokens)} tokens"
    stops = job.get("generation", {}).get("stop", ())
    yield from compare(where, step, reference.steps.get(id), stops, begun)


def compare(
    where: str, step: StepSum, calm: dict[str, object] | None, stops: Iterable[str], begun: bool
) -> Iterable[str]:
    """A step beside the same step of the undisturbed run: equal, or its beginning where it was cut short."""
    if calm is None:
        if begun:
            yield f"{where} has no counterpart in the undisturbed run"
        return
    tokens, text = calm["tokens"], calm["text"]
    assert isinstance(tokens, list)
    assert isinstance(text, str)
    if step.reason in CUT_SHORT:
        if step.tokens != tokens[: len(step.tokens)]:
            yield f"{where} (cut short): its tokens {_differ(step.tokens, tokens)} the undisturbed run's beginning"
        elif not begins(step.text, text, stops if calm["reason"] == "stop" else ()):
            yield f"{where} (cut short): its text {step.text!r} is not the beginning of {text!r}"
    elif step.tokens != tokens:
        yield f"{where}: its tokens {_differ(step.tokens, tokens)} the undisturbed run's"
    elif step.text != text:
        yield f"{where}: its text {step.text!r} is not the undisturbed run's {text!r}"
    elif (step.reason, step.error) != (calm["reason"], calm["error"]):
        yield f"{where} ended as {step.reason} {step.error}; the undisturbed run's as {calm['reason']} {calm['error']}"


def begins(text: str, whole: str, stops: Iterable[str]) -> bool:
    """Whether the text of a step cut short is the beginning of what it would have said.

    Its end brings out what was held back: what might have become the stop string that ended the other run.
    """
    if whole.startswith(text):
        return True
    return any(text == whole + stop[:length] for stop in stops for length in range(1, len(stop)))


def check_other(job: Job, history: History, folded: Folded, reference: Reference) -> Iterable[str]:
    """Any other job: done once, in every session it concerns, or refused as it should be."""
    id, where = job["id"], f"{job['op']} {job['id']} of {job['session']}"
    expected = job.get("expect")
    done, error = folded.done.get(id, Counter()), folded.errors.get(id)
    if error != expected:
        yield f"{where} ended with error {error}; expected was {expected}"
    if error != reference.errors.get(id):
        yield f"{where} ended with error {error}; in the undisturbed run it was {reference.errors.get(id)}"
    if expected is None and error is None:
        for session in sessions_of(job):
            if done[session] != 1:
                yield f"{where} was done {done[session]} times in {session}"
    for answer in history.answers.get(id, []):
        if answer.get("error") != expected:
            yield f"{where}: the producer was told of error {answer.get('error')}; expected was {expected}"
    if len(history.answers.get(id, [])) == 0:
        yield f"{where}: the producer was never told how it ended"


def check_ending(job: Job, history: History, reference: Reference) -> Iterable[str]:
    """RQ's own account of the job."""
    id, where = job["id"], f"{job['op']} {job['id']} of {job['session']}"
    if job["op"] == "step" and not history.answers.get(id):
        yield f"{where}: the producer was never told how it ended"
    ending = history.endings.get(id)
    if ending is None:
        yield f"{where}: RQ has no record of it"
        return
    wanted = "failed" if expected_error(job, reference) else "finished"
    if ending["status"] != wanted:
        yield f"{where}: RQ says {ending['status']}; expected was {wanted}"
    if ending["results"] != 1:
        yield f"{where}: RQ stores {ending['results']} results instead of one"


def check_order(history: History, folded: Folded) -> Iterable[str]:
    """Jobs of a session end in the order in which they were enqueued; a clone may pass the step before it."""
    wanted: dict[str, list[Job]] = {}
    for job in history.jobs:
        for session in sessions_of(job):
            wanted.setdefault(session, []).append(job)
    known = {job["id"] for job in history.jobs}
    for session, ended in folded.order.items():
        for id in ended:
            if id not in known:
                yield f"session {session}: events of job {id}, which nobody enqueued"
        place = {id: index for index, id in reversed(list(enumerate(ended)))}
        line = [job for job in wanted.get(session, []) if job["id"] in place]
        for before, after in pairwise(line):
            passes = after["op"] == "clone" and after.get("upto") is not None and before["op"] == "step"
            if place[after["id"]] < place[before["id"]] and not passes:
                yield f"session {session}: {after['op']} {after['id']} ended before {before['op']} {before['id']}"


def check_logs(history: History, folded: Folded, reference: Reference) -> Iterable[str]:
    """Logs equal what their events add up to, and what the undisturbed run has."""
    for session, log in history.logs.items():
        added = folded.logs.get(session, [])
        if log != added:
            yield f"session {session}: the log {_differ(log, added)} the sum of its events"
        if session not in reference.logs:
            yield f"session {session} is open, and in the undisturbed run it is not"
        elif log != reference.logs[session]:
            yield f"session {session}: the log {_differ(log, reference.logs[session])} the undisturbed run's"


def check_subscribers(history: History, folded: Folded) -> Iterable[str]:
    """Whoever followed a stream or a step was given exactly what the stream holds."""
    for session, kept in history.kept.items():
        read = [id for id, _ in history.events.get(session, [])]
        # a session opened anew after its keys had expired has a new stream: only the end must agree
        tail = read[len(read) - len(kept) :] if len(read) > len(kept) else read
        if tail != kept:
            missing = sorted(set(kept) - set(read))[:3]
            yield f"session {session}: a subscriber read {len(read)} events, the stream has {len(kept)}: {missing}"
    for id in history.late:
        session = folded.steps[id].session if id in folded.steps else ""
        if session in history.kept and set(folded.steps[id].ids) & set(history.kept[session]):
            yield f"step {id}: its follower was given events without ids, though the stream of {session} is there"
    for id, given in history.seen.items():
        step = folded.steps.get(id)
        if step is not None and given != step.ids:
            yield f"step {id}: its follower was given {len(given)} events {_differ(given, step.ids)} the stream's"


def expected_error(job: Job, reference: Reference) -> str | None:
    """The code of the error a job has to end with, None for none."""
    calm = reference.steps.get(job["id"], {}).get("error")
    expected: str | None = calm if calm in OF_THE_LOG else job.get("expect")
    return expected


def sessions_of(job: Job) -> list[str]:
    """Every session a job concerns."""
    return [job["session"], *job.get("targets", ())]


def _differ(one: list[object] | list[int] | list[str], other: list[object] | list[int] | list[str]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"(length {len(one)} against {len(other)}) differ from index {at} ({one[at : at + 3]}) from"


def _short(tokens: list[int]) -> str:
    return str(tokens if len(tokens) < 8 else [*tokens[:8], "..."])
