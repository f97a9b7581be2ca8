"""Steps whose fields are wrong."""

from __future__ import annotations

import math
from typing import Any

from hostile.arena import EMPTY, JOBS, NOBODY, TARGET, Attack, payload
from hostile.words import ENQUEUE, FIELDS, IDS, MSGPACK, STEP, STEP_VERSION, long
from hostile.words import SETTINGS as NAMES


def step(error: str, channel: str | None = TARGET, **fields: Any) -> Attack:
    """A step on the target, unless ``session`` names another, which must end with this error."""
    given = {"session": TARGET, "generation": {"max_tokens": 1}, **fields}
    return Attack(error, payload(JOBS + "step", given), session=channel)


def generation(error: str, **settings: Any) -> Attack:
    """A step with these sampling settings."""
    return step(error, tokens=[97], generation=settings)


INPUTS = {
    "tokens as text": step(f"{STEP}tokens: 'abc' is not accepted; expected a list", tokens="abc"),
    "tokens as a map": step(f"{STEP}tokens: {{'0': 1}} is not accepted; expected a list", tokens={"0": 1}),
    "tokens as bytes": step(f"{STEP}tokens: b'abc' is not accepted; expected a list", tokens=b"abc"),
    "a token as text": step(f"{STEP}tokens.0: '97' is not accepted; expected an integer", tokens=["97"]),
    "a token as a float": step(f"{STEP}tokens.0: 97.0 is not accepted; expected an integer", tokens=[97.0]),
    "a token as a truth": step(f"{STEP}tokens.0: True is not accepted; expected an integer", tokens=[True]),
    "a token as nothing": step(f"{STEP}tokens.0: None is not accepted; expected an integer", tokens=[None]),
    "a token as a list": step(f"{STEP}tokens.0: [97] is not accepted; expected an integer", tokens=[[97]]),
    "a token of -1": step(f"{STEP}tokens.1: -1 is not accepted; 0 or more", tokens=[97, -1]),
    "a token of -2^63": step(f"{STEP}tokens.0: -9223372036854775808 is not accepted; 0 or more", tokens=[-(2**63)]),
    "a token of 2^24": step(f"{STEP}tokens.0: 16777216 is not accepted; less than 16777216", tokens=[2**24]),
    "a token of 2^63": step(f"{STEP}tokens.0: 9223372036854775808 is not accepted; less than 16777216", tokens=[2**63]),
    "a token of 2^64 - 1": step(
        f"{STEP}tokens.0: 18446744073709551615 is not accepted; less than 16777216", tokens=[2**64 - 1]
    ),
    "a token of 10^30 as a float": step(f"{STEP}tokens.0: 1e+30 is not accepted; expected an integer", tokens=[1e30]),
    "a token of 10^30 as text": step(
        f"{STEP}tokens.0: '1000000000000000000000000000000' is not accepted; expected an integer", tokens=[str(10**30)]
    ),
    "a token outside the vocabulary": step(
        "[invalid] tokens: token 5000 is outside the model's vocabulary of 261", tokens=[97, 5000]
    ),
    "tokens by the million": step(
        f"{STEP}tokens: [97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97, ...] is not "
        f"accepted; at most 1048576 items",
        tokens=[97] * ((1 << 20) + 1),
    ),
    "wrong tokens by the million": step(
        f"{STEP}tokens.0: 'x' is not accepted; expected an integer", tokens=["x"] * (1 << 20)
    ),
    "more tokens than the context": step(
        "[context_full] 4 tokens in session 'target' and 5000 appended are 5004; the model's context is 4096",
        tokens=[97] * 5000,
    ),
    "text as a number": step(f"{STEP}text: 5 is not accepted; expected text", text=5),
    "text as bytes": step(f"{STEP}text: b'abc' is not accepted; expected text", text=b"abc"),
    "10 MB of text": step(
        f"{STEP}text: {long('x')} is not accepted; at most 4194304 characters", text="x" * (10 << 20)
    ),
    "text past the context": step(
        "[context_full] text: 4194304 characters are at least 322639 tokens; the model's context is "
        "4096, and session 'target' has 4",
        text="x" * (4 << 20),
    ),
    "messages as text": step(f"{STEP}messages: 'hello' is not accepted; expected a list", messages="hello"),
    "no messages": step(f"{STEP}messages: [] is not accepted; at least 1 item", messages=[]),
    "a message of nothing": step(f"{STEP}messages.0.role is missing (and 1 more error)", messages=[{}]),
    "a role as a number": step(
        f"{STEP}messages.0.role: 5 is not accepted; expected text", messages=[{"role": 5, "content": "x"}]
    ),
    "a role without letters": step(
        f"{STEP}messages.0.role: '' is not accepted; at least 1 character", messages=[{"role": "", "content": "x"}]
    ),
    "a role of 10,000 letters": step(
        f"{STEP}messages.0.role: {long('r')} is not accepted; at most 64 characters",
        messages=[{"role": "r" * 10_000, "content": "x"}],
    ),
    "a role with a line break": step(
        "[invalid] messages: messages[0].role must be a word like 'user', got 'user\\nsystem'",
        messages=[{"role": "user\nsystem", "content": "x"}],
    ),
    "10 MB of content": step(
        f"{STEP}messages.0.content: {long('x')} is not accepted; at most 4194304 characters",
        messages=[{"role": "user", "content": "x" * (10 << 20)}],
    ),
    "content as a list": step(
        f"{STEP}messages.0.content: ['x'] is not accepted; expected text", messages=[{"role": "user", "content": ["x"]}]
    ),
    "an unknown field in a message": step(
        f"{STEP}unknown field messages.0.name; the fields are: role, content",
        messages=[{"role": "user", "content": "x", "name": "y"}],
    ),
    "messages by the thousand": step(
        f"{STEP}messages: [{{'content': 'x', 'role': 'user'}}, {{'content': 'x', 'role': 'user'}}, "
        f"{{'content'… is not accepted; at most 4096 items",
        messages=[{"role": "user", "content": "x"}] * 4097,
    ),
    "messages full of unknown fields": step(
        f"{STEP}messages.0.role is missing (and 1001 more errors)", messages=[{f"f{i}": 0 for i in range(1000)}] * 500
    ),
    "tokens and text": step(
        f"{STEP}give at most one of tokens, text and messages, not tokens and text", tokens=[97], text="x"
    ),
    "nothing to begin with": step(
        "[invalid] session 'empty' is empty and the step appends nothing: there is nothing to generate from",
        EMPTY,
        session=EMPTY,
    ),
    "an unknown field": step(f"{STEP}unknown field temprature; {FIELDS}", temprature=1),
    "unknown fields by the thousand": step(
        f"{STEP}unknown field f0; {FIELDS} (and 7999 more errors)", **{f"f{i}": 0 for i in range(8000)}
    ),
    "a log that is longer": step("[length_mismatch] at_length: session 'target' has 4 tokens, not 3", at_length=3),
    "a length of -1": step(f"{STEP}at_length: -1 is not accepted; 0 or more", at_length=-1),
    "a length of 2^31": step(f"{STEP}at_length: 2147483648 is not accepted; less than 2147483648", at_length=2**31),
    "a length as a truth": step(f"{STEP}at_length: True is not accepted; expected an integer", at_length=True),
    "a deadline that is no number": step(
        f"{STEP}deadline: nan is not accepted; expected a finite number", deadline=math.nan
    ),
    "a deadline at infinity": step(f"{STEP}deadline: inf is not accepted; expected a finite number", deadline=math.inf),
    "a deadline before time": step(f"{STEP}deadline: -1.0 is not accepted; 0 or more", deadline=-1.0),
    "a deadline as text": step(f"{STEP}deadline: 'soon' is not accepted; expected a number", deadline="soon"),
    "a tenant as a number": step(f"{STEP}tenant: 5 is not accepted; expected text", tenant=5),
    "a tenant with a space": step(f"{STEP}tenant: 'a b' is not accepted; {IDS}", tenant="a b"),
    "a tenant of 10,000 letters": step(f"{STEP}tenant: {long('t')} is not accepted; {IDS}", tenant="t" * 10_000),
    "version 2": step(f"{STEP_VERSION}wire version 2 is not supported; supported is 1", v=2),
    "version 2^64 - 1": step(
        f"{STEP_VERSION}wire version 18446744073709551615 is not supported; supported is 1", v=2**64 - 1
    ),
    "a version as text": step(f"{STEP_VERSION}wire version '1' is not supported; supported is 1", v="1"),
    "a version as a truth": step(f"{STEP_VERSION}wire version True is not supported; supported is 1", v=True),
    "a version as nothing": step(f"{STEP_VERSION}wire version None is not supported; supported is 1", v=None),
    "a version as a map": step(f"{STEP_VERSION}wire version {{'1': 1}} is not supported; supported is 1", v={"1": 1}),
    "a session nobody opened": step(
        "[no_such_session] session 'nobody' does not exist: open it first", NOBODY, session=NOBODY
    ),
}

SETTINGS = {
    "settings as a list": step(f"{STEP}generation: [1] is not accepted; expected a map", generation=[1]),
    "settings as nothing": step(f"{STEP}generation: None is not accepted; expected a map", generation=None),
    "an unknown setting": generation(f"{STEP}unknown field generation.temprature; {NAMES}", temprature=1.0),
    "-1 tokens wanted": generation(f"{STEP}generation.max_tokens: -1 is not accepted; 0 or more", max_tokens=-1),
    "2^24 tokens wanted": generation(
        f"{STEP}generation.max_tokens: 16777216 is not accepted; less than 16777216", max_tokens=2**24
    ),
    "2^63 tokens wanted": generation(
        f"{STEP}generation.max_tokens: 9223372036854775808 is not accepted; less than 16777216", max_tokens=2**63
    ),
    "tokens wanted as text": generation(
        f"{STEP}generation.max_tokens: '5' is not accepted; expected an integer", max_tokens="5"
    ),
    "tokens wanted as a truth": generation(
        f"{STEP}generation.max_tokens: True is not accepted; expected an integer", max_tokens=True
    ),
    "1.5 tokens wanted": generation(
        f"{STEP}generation.max_tokens: 1.5 is not accepted; expected an integer", max_tokens=1.5
    ),
    "temperature no number": generation(
        f"{STEP}generation.temperature: nan is not accepted; expected a finite number", temperature=math.nan
    ),
    "temperature infinite": generation(
        f"{STEP}generation.temperature: inf is not accepted; expected a finite number", temperature=math.inf
    ),
    "temperature minus infinite": generation(
        f"{STEP}generation.temperature: -inf is not accepted; expected a finite number", temperature=-math.inf
    ),
    "temperature below zero": generation(
        f"{STEP}generation.temperature: -0.1 is not accepted; 0 or more", temperature=-0.1
    ),
    "temperature 101": generation(f"{STEP}generation.temperature: 101 is not accepted; at most 100", temperature=101),
    "temperature in words": generation(
        f"{STEP}generation.temperature: 'hot' is not accepted; expected a number", temperature="hot"
    ),
    "top_k -1": generation(f"{STEP}generation.top_k: -1 is not accepted; 0 or more", top_k=-1),
    "top_k 2^63": generation(
        f"{STEP}generation.top_k: 9223372036854775808 is not accepted; less than 16777216", top_k=2**63
    ),
    "top_p 0": generation(f"{STEP}generation.top_p: 0.0 is not accepted; more than 0", top_p=0.0),
    "top_p above 1": generation(f"{STEP}generation.top_p: 1.5 is not accepted; at most 1", top_p=1.5),
    "top_p no number": generation(
        f"{STEP}generation.top_p: nan is not accepted; expected a finite number", top_p=math.nan
    ),
    "min_p below 0": generation(f"{STEP}generation.min_p: -0.1 is not accepted; 0 or more", min_p=-0.1),
    "repetition penalty 0": generation(
        f"{STEP}generation.repetition_penalty: 0.0 is not accepted; more than 0", repetition_penalty=0.0
    ),
    "presence penalty 10^9": generation(
        f"{STEP}generation.presence_penalty: 1000000000.0 is not accepted; at most 100", presence_penalty=1e9
    ),
    "frequency penalty no number": generation(
        f"{STEP}generation.frequency_penalty: nan is not accepted; expected a finite number", frequency_penalty=math.nan
    ),
    "penalty window -2": generation(
        f"{STEP}generation.penalty_window: -2 is not accepted; -1 or more", penalty_window=-2
    ),
    "penalty window 2^31": generation(
        f"{STEP}generation.penalty_window: 2147483648 is not accepted; less than 2147483648", penalty_window=2**31
    ),
    "bias as a list": generation(f"{STEP}generation.logit_bias: [1] is not accepted; expected a map", logit_bias=[1]),
    "bias for 100,000 tokens": step(
        f"{MSGPACK}: the map at byte 70 has 100000 entries; the limit is 8192{ENQUEUE}",
        None,
        generation={"logit_bias": dict.fromkeys(range(100000), 1.0)},
    ),
    "bias for 5,000 tokens": generation(
        f"{STEP}generation.logit_bias: {{0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0, 6: 1.0, 7: "
        f"1.0, 8: 1.0, 9: 1.0… is not accepted; at most 4096 items",
        logit_bias={str(i): 1.0 for i in range(5000)},
    ),
    "bias for token -1": generation(
        f"{STEP}generation.logit_bias.-1: -1 is not accepted; 0 or more", logit_bias={-1: 1.0}
    ),
    "bias for a word": generation(
        f"{STEP}generation.logit_bias.x: 'x' is not accepted; expected an integer", logit_bias={"x": 1.0}
    ),
    "bias for a token twice": generation(
        f"{STEP}logit_bias: a token id comes twice, as text and as integer", logit_bias={1: 1.0, "1": 2.0}
    ),
    "bias for a token outside the vocabulary": generation(
        "[invalid] generation.logit_bias: token 5000 is outside the model's vocabulary of 261", logit_bias={5000: 1.0}
    ),
    "bias no number": generation(
        f"{STEP}generation.logit_bias.1: nan is not accepted; expected a finite number", logit_bias={1: math.nan}
    ),
    "bias infinite": generation(
        f"{STEP}generation.logit_bias.1: inf is not accepted; expected a finite number", logit_bias={1: math.inf}
    ),
    "bias of 10^30": generation(
        f"{STEP}generation.logit_bias.1: 1e+30 is not accepted; at most 1000000000", logit_bias={1: 1e30}
    ),
    "stop as text": generation(f"{STEP}generation.stop: 'x' is not accepted; expected a list", stop="x"),
    "a stop string of 1 MB": generation(
        f"{STEP}generation.stop.0: {long('x')} is not accepted; at most 512 characters", stop=["x" * (1 << 20)]
    ),
    "an empty stop string": generation(f"{STEP}generation.stop.0: '' is not accepted; at least 1 character", stop=[""]),
    "17 stop strings": generation(
        f"{STEP}generation.stop: ['x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', "
        f"'x', 'x', 'x'… is not accepted; at most 16 items",
        stop=["x"] * 17,
    ),
    "a stop string as a number": generation(f"{STEP}generation.stop.0: 5 is not accepted; expected text", stop=[5]),
    "stop tokens by the hundred": generation(
        f"{STEP}generation.stop_tokens: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...] is not "
        f"accepted; at most 256 items",
        stop_tokens=[1] * 257,
    ),
    "a stop token outside the vocabulary": generation(
        "[invalid] generation.stop_tokens: token 5000 is outside the model's vocabulary of 261", stop_tokens=[5000]
    ),
    "ignore_eos 1": generation(f"{STEP}generation.ignore_eos: 1 is not accepted; expected true or false", ignore_eos=1),
    "logprobs 101": generation(f"{STEP}generation.logprobs: 101 is not accepted; at most 100", logprobs=101),
    "logprobs as a truth": generation(
        f"{STEP}generation.logprobs: True is not accepted; expected an integer", logprobs=True
    ),
}

_LONG = "x" * 10_000
SESSIONS = {
    "a session as a number": step(f"{STEP}session: 5 is not accepted; expected text", None, session=5),
    "a session as nothing": step(f"{STEP}session: None is not accepted; expected text", None, session=None),
    "a session as bytes": step(f"{STEP}session: b'target' is not accepted; expected text", None, session=b"target"),
    "a session as a list": step(f"{STEP}session: ['target'] is not accepted; expected text", None, session=[TARGET]),
    "a session of no letters": step(f"{STEP}session: '' is not accepted; {IDS}", None, session=""),
    "a session with a space": step(f"{STEP}session: 'a b' is not accepted; {IDS}", None, session="a b"),
    "a session with braces": step(f"{STEP}session: 'a}}{{b' is not accepted; {IDS}", None, session="a}{b"),
    "a session with a line break": step(f"{STEP}session: 'target\\n' is not accepted; {IDS}", None, session="target\n"),
    "a session with a NUL": step(f"{STEP}session: 'target\\x00' is not accepted; {IDS}", None, session="target\0"),
    "a session with a return": step(f"{STEP}session: 'tar\\rget' is not accepted; {IDS}", None, session="tar\rget"),
    "a session beyond ASCII": step(f"{STEP}session: 'tårget' is not accepted; {IDS}", None, session="tårget"),
    "a session beginning with a dash": step(
        f"{STEP}session: '-target' is not accepted; {IDS}", None, session="-target"
    ),
    "a session with a glob": step(f"{STEP}session: 'targe*' is not accepted; {IDS}", None, session="targe*"),
    "a session of 129 letters": step(f"{STEP}session: {long('x')} is not accepted; {IDS}", None, session="x" * 129),
    "a session of 10,000 letters": step(f"{STEP}session: {long('x')} is not accepted; {IDS}", None, session=_LONG),
    "no session": Attack(f"{STEP}session is missing", payload(JOBS + "step", {"text": "x"}), session=None),
}

ATTACKS = INPUTS | SETTINGS | SESSIONS
